"""CURVE keys as files, and who may come in.

    NAME.key           public and secret key of a server or client; readable by its owner only
    NAME.pub           one line, `PUBLIC-KEY NAME`, to be given away
    authorised_keys    such lines, one for each key that a server lets in; lines that begin with "# " are comments

A server looks at its `authorised_keys` again whenever the file changes: a key that is added works at once, a key that is
removed is cut off. A name may have several keys, for the time in which one replaces another.

Not its job: cutting connections (`connection_watch`), answering ZeroMQ (`authenticator`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import stat
import threading
from dataclasses import dataclass, field
from pathlib import Path

import zmq

from relayrl.errors import ConfigError

AUTHORISED_FILE = "authorised_keys"
_KEY = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A public key and its secret, in ZeroMQ's printable form (Z85)."""

    public: str
    secret: str = field(repr=False)

    @classmethod
    def new(cls) -> KeyPair:
        while True:
            public, secret = zmq.curve_keypair()
            if public[:1].isalnum():  # a command line takes it for a key, not for an option or a comment
                return cls(public.decode(), secret.decode())

    @classmethod
    def load(cls, path: Path | str) -> KeyPair:
        """Read a `.key` file; `ConfigError` if it is none, or if others may read it."""
        path = Path(path).expanduser()
        text = _read(path)
        if os.name == "posix" and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigError(f"{path} can be read by others; run: chmod 600 {path}")
        fields = dict(line.partition(" = ")[::2] for line in text.splitlines())
        pair = cls(fields.get("public", ""), fields.get("secret", ""))
        if not _KEY.fullmatch(pair.public) or not _KEY.fullmatch(pair.secret):
            raise ConfigError(f"{path} is no key file of RelayRL; make one with: relayrl keys new NAME")
        if zmq.curve_public(pair.secret.encode()).decode() != pair.public:
            raise ConfigError(f"{path} is damaged: its public key does not belong to its secret key")
        return pair

    def save(self, folder: Path | str, name: str) -> Path:
        """Write `NAME.key` and `NAME.pub` into the folder; files that exist are not replaced."""
        folder = Path(folder).expanduser()
        check_name(name)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = folder / f"{name}.key"
        _create(path, f"public = {self.public}\nsecret = {self.secret}\n", 0o600)
        _create(folder / f"{name}.pub", f"{self.public} {name}\n", 0o644)
        return path


@dataclass(frozen=True, slots=True)
class ClientKeys:
    """What a client needs: its own keys, and the public key that the server must have."""

    own: KeyPair
    server_public: str

    @classmethod
    def load(cls, key_file: Path | str, server: Path | str) -> ClientKeys:
        """Read a `.key` file; `server` is the server's public key itself, or its `.pub` file."""
        return cls(KeyPair.load(key_file), public_key(server)[0])


def load_client_keys(key: Path | str | None, server_key: Path | str | None) -> ClientKeys | None:
    """The keys of a client that may have none, as on loopback; `ConfigError` where it has only one of the two."""
    if (key is None) != (server_key is None):
        raise ConfigError("give this client's key and the server's key together, or neither of them on loopback")
    return None if key is None or server_key is None else ClientKeys.load(key, server_key)


class Access:
    """A server's own keys, and the keys of the file of those that it lets in. Thread-safe."""

    def __init__(self, own: KeyPair, authorised_file: Path | str) -> None:
        self.own, self.authorised_file = own, Path(authorised_file).expanduser()
        self._lock = threading.Lock()
        self._names: dict[str, str] = {}
        self._signature: tuple[int, int, int] | None = (0, 0, 0)
        self.revision = 0
        """How often the file was read: whoever keeps connections compares it with the one that they were checked by."""
        self.refresh()

    @classmethod
    def load(cls, key_file: Path | str, authorised_file: Path | str | None = None) -> Access:
        """Read the server's `.key` file; those it lets in stand in `authorised_keys` beside it, unless said otherwise."""
        key_file = Path(key_file).expanduser()
        return cls(KeyPair.load(key_file), authorised_file or key_file.parent / AUTHORISED_FILE)

    def name_of(self, public: str) -> str | None:
        """The name of a key that is let in; None for any other."""
        return self._names.get(public)

    def refresh(self) -> None:
        """Read the file again if it changed. A file that is not there lets nobody in."""
        with self._lock:
            signature = _signature(self.authorised_file)
            if signature == self._signature:
                return
            self._signature = signature
            try:
                self._names = dict(read_authorised(self.authorised_file))
            except ConfigError as error:
                self._names = {}
                _log.warning("nobody is let in", extra={"reason": str(error)})
            self.revision += 1


def check_name(name: str) -> None:
    """`ConfigError` unless `name` can name a key."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r:.80} names no key; use letters, digits and ._@-, at most 64")


def public_key(text: Path | str) -> tuple[str, str]:
    """A public key and its name ('' if it has none), from the key itself or its `.pub` file."""
    if _KEY.fullmatch(str(text)):
        return str(text), ""
    lines = read_authorised(Path(text).expanduser())
    if len(lines) != 1:
        raise ConfigError(f"{text} holds {len(lines)} public keys instead of one")
    return lines[0]


def read_authorised(path: Path) -> list[tuple[str, str]]:
    """Keys and names of a file, in its order. Lines that are none are skipped with a warning."""
    found: list[tuple[str, str]] = []
    for number, line in enumerate(_read(path).splitlines(), 1):
        parts = line.split()
        if not parts or parts[0] == "#":
            continue
        if len(parts) == 2 and _KEY.fullmatch(parts[0]) and _NAME.fullmatch(parts[1]):
            found.append((parts[0], parts[1]))
        else:
            _log.warning("line is no key and name", extra={"file": str(path), "line": number})
    return found


def authorise(path: Path, public: str, name: str) -> None:
    """Let a key in. `ConfigError` if the file has it already."""
    check_name(name)
    if any(key == public for key, _ in (read_authorised(path) if path.exists() else [])):
        raise ConfigError(f"{path} has this key already")
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    text = _read(path) if path.exists() else ""
    _replace(path, text + ("\n" if text and not text.endswith("\n") else "") + f"{public} {name}\n")


def revoke(path: Path, key_or_name: str) -> int:
    """Let a key, or all keys of a name, in no longer; gives their number. `ConfigError` if there is none."""
    lines = _read(path).splitlines(keepends=True)
    kept = [line for line in lines if key_or_name not in line.split()[:2] or line.split()[0] == "#"]
    if len(kept) == len(lines):
        known = ", ".join(sorted({name for _, name in read_authorised(path)})) or "nobody"
        raise ConfigError(f"{path} has no key or name {key_or_name!r:.80}; it lets in: {known}")
    _replace(path, "".join(kept))
    return len(lines) - len(kept)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read keys from {path}: {error}; see `relayrl keys --help`") from error


def _create(path: Path, text: str, mode: int) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError as error:
        raise ConfigError(f"{path} exists; choose another name, or remove it first") from error
    with open(descriptor, "w") as file:
        file.write(text)


def _replace(path: Path, text: str) -> None:
    """Write the whole file at once: a server never reads half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        _create(temporary, text, 0o600)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        raise


def _signature(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
