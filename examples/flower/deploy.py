"""Three devices on this machine, with certificates and registered keys: a SuperLink, three SuperNodes, and one run.

``python examples/flower/deploy.py FOLDER``, in an environment with ``nestling[flower,data]``, writes everything there.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

APP = Path(__file__).with_name("app")
DEVICES = 3


def main() -> int:
    """Start everything, run the app, end everything; return the exit code of the run."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "devices-demo").absolute()
    folder.mkdir(parents=True)
    environment = flower_environment(folder)
    certificate(folder)
    port = free_port()
    connection = f'address = "127.0.0.1:{port}"\nroot-certificates = "{folder / "ca.crt"}"\n'
    (folder / "config.toml").write_text(f'[superlink]\ndefault = "demo"\n\n[superlink.demo]\n{connection}')
    running: list[subprocess.Popen[bytes]] = []

    def start(name: str, *command: str) -> None:
        with (folder / f"{name}.log").open("wb") as log:
            running.append(subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=log))

    try:
        print(f"a SuperLink at 127.0.0.1:{port}, with a certificate of its own authority", flush=True)
        tls = ["--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key"]
        where = ["--host", "127.0.0.1", "--port", str(port), "--database", "state.db"]
        start("superlink", "flower-superlink", *tls, *where, "--enable-supernode-auth")
        wait_for(port)
        for device in range(DEVICES):
            key = folder / f"node{device}"
            run("ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(key), cwd=folder)
            run("flwr", "supernode", "register", f"{key}.pub", "demo", cwd=folder, env=environment)
            print(f"device {device}: its key is registered", flush=True)
            link = ["--superlink", f"127.0.0.1:{port}", "--root-certificates", "ca.crt"]
            own = ["--auth-supernode-private-key", str(key), "--node-config", f"client={device}"]
            own += ["--host", "127.0.0.1", "--port", str(free_port())]
            start(f"node{device}", "flower-supernode", *link, *own)
        words = ["flwr", "run", str(APP), "demo", "--stream", "-c", f'out="{folder / "run"}"']
        return subprocess.run(words, env=environment, cwd=folder, check=False).returncode
    finally:
        for process in reversed(running):
            process.terminate()
        for process in running:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def flower_environment(folder: Path) -> dict[str, str]:
    """Return the environment of Flower's programs: nothing is fetched or reported, and all files are in the folder."""
    programs = Path(sys.executable).parent
    return {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "FLWR_HOME": str(folder),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "OMP_NUM_THREADS": "1",
    }


def certificate(folder: Path) -> None:
    """Make an authority, and the certificate of a server at 127.0.0.1."""
    for program in ("openssl", "ssh-keygen"):
        if shutil.which(program) is None:
            sys.exit(f"deploy.py needs the program {program}")
    new = ["openssl", "req", "-newkey", "rsa:2048", "-nodes"]
    run(*new, "-x509", "-days", "7", "-subj", "/CN=demo", "-keyout", "ca.key", "-out", "ca.crt", cwd=folder)
    run(*new, "-subj", "/CN=127.0.0.1", "-keyout", "server.key", "-out", "server.csr", cwd=folder)
    (folder / "server.ext").write_text("subjectAltName=IP:127.0.0.1\n")
    sign = ["openssl", "x509", "-req", "-in", "server.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial"]
    run(*sign, "-days", "7", "-extfile", "server.ext", "-out", "server.pem", cwd=folder)


def run(*words: str, cwd: Path, env: dict[str, str] | None = None) -> None:
    """Run a program that says nothing unless it fails."""
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: {done.stdout}{done.stderr}")


def free_port() -> int:
    """Return a port that nobody uses."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def wait_for(port: int, seconds: float = 60) -> None:
    """Wait until a program listens at a port."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    sys.exit(f"nothing listens at port {port} after {seconds:g} s")


if __name__ == "__main__":
    sys.exit(main())
