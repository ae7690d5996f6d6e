"""`relayrl models` and `relayrl serve inference` as a user types them."""

import json
import re
from pathlib import Path

import pytest
from cli_in_process import run_cli
from exported_policies import exported_policy

from relayrl.servers.inference.inference_metrics import CODES
from relayrl.servers.inference.inference_server import InferenceServer
