"""A run's settings for TensorBoard: its TEXT tab shows them, its HPARAMS tab compares runs by them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relayrl.config.settings_text import flattened

METRICS = ("episode/return_mean", "evaluation/return_mean")
"""What runs are compared by."""
_PLUGIN = "hparams"
_EXPERIMENT, _SESSION = "_hparams_/experiment", "_hparams_/session_start_info"


def settings_summary(settings: Mapping[str, Any]) -> Any:
    """A `Summary` of the settings of one run, as JSON has them."""
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
    from tensorboard.plugins.hparams.api_pb2 import Experiment, HParamInfo, MetricInfo, MetricName
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionStartInfo

    flat = flattened(settings)
    rows = "".join(f"| {name} | `{value}` |\n" for name, value in flat.items())
    text = TensorProto(
        dtype="DT_STRING",
        string_val=[f"| setting | value |\n|---|---|\n{rows}".encode()],
        tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)]),
    )
    about_text = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    session = SessionStartInfo()
    for name, value in flat.items():
        _put(session.hparams[name], value)
    experiment = Experiment(
        hparam_infos=[HParamInfo(name=name, type=_type_of(value)) for name, value in flat.items()],
        metric_infos=[MetricInfo(name=MetricName(tag=metric)) for metric in METRICS],
    )

    def plugin_value(tag: str, data: Any) -> Any:
        content = SummaryMetadata.PluginData(plugin_name=_PLUGIN, content=data.SerializeToString())
        return Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=content))

    return Summary(
        value=[
            Summary.Value(tag="settings", tensor=text, metadata=about_text),
            plugin_value(_EXPERIMENT, HParamsPluginData(experiment=experiment)),
            plugin_value(_SESSION, HParamsPluginData(session_start_info=session)),
        ]
    )


def _type_of(value: Any) -> str:
    """TensorBoard's name for the kind of value that `_put` makes of a setting."""
    if isinstance(value, bool):
        return "DATA_TYPE_BOOL"
    return "DATA_TYPE_FLOAT64" if isinstance(value, int | float) else "DATA_TYPE_STRING"


def _put(cell: Any, value: Any) -> None:
    """A setting as the kinds of value that TensorBoard knows: number, truth or text."""
    if isinstance(value, bool):
        cell.bool_value = value
    elif isinstance(value, int | float):
        cell.number_value = value
    else:
        cell.string_value = "" if value is None else str(value)
