"""The cost of serving the game to browsers: CPU time of `trainer.watch --web`.

    python bench/web.py                      one viewer, which plays, half a minute
    python bench/web.py --viewers 4 --policy runs/TASK-TIME

Without `--policy` there is no network: the bench measures emulation, pictures (PNG) and
WebSockets. Viewers run in this process and are not counted.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from contextlib import suppress

import numpy as np
import psutil
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from mario_envpool import nes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--viewers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--policy", help="a checkpoint; without one a viewer plays")
    args = parser.parse_args()
    command = [sys.executable, "-m", "trainer.watch", "--web", "--web-port", "0"]
    command += ["--policy", args.policy] if args.policy else ["--human"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = server.stdout.readline().split()[4]
        counts = [[0, 0] for _ in range(args.viewers)]
        for count in counts:
            socket = connect(address.replace("http", "ws") + "live")
            threading.Thread(target=receive, args=(socket, count), daemon=True).start()
            if not args.policy and count is counts[0]:
                socket.send(json.dumps({"do": "take"}))
                held = nes.RIGHT | nes.B
                socket.send(json.dumps({"do": "buttons", "value": held}))
        time.sleep(2)
        process, start = psutil.Process(server.pid), time.monotonic()
        before, sent = sum(process.cpu_times()[:2]), np.sum(counts, axis=0)
        time.sleep(args.seconds)
        work = sum(process.cpu_times()[:2]) - before
        seconds = time.monotonic() - start
        pictures, size = np.sum(counts, axis=0) - sent
        server.terminate()
    each = pictures / seconds / args.viewers
    print(
        f"{args.viewers} viewers, {each:.1f} pictures per second each: "
        f"{100 * work / seconds:.1f} % of one core, "
        f"{size / seconds / args.viewers / 1000:.0f} kB/s each; 30 pictures would be "
        f"{100 * work / seconds * 30 / each:.1f} %"
    )


def receive(socket: ClientConnection, count: list[int]) -> None:
    """Counts pictures, and bytes of all messages, until the connection ends."""
    with suppress(ConnectionClosed):
        for message in socket:
            count[0] += isinstance(message, bytes)
            count[1] += len(message)


if __name__ == "__main__":
    main()
