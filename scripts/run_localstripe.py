"""Runs localstripe for this machine alone, on a free port, which it prints. Nothing is kept on disk.

The package's own command listens on every address and writes all its data to a file at each change.
"""

import asyncio

from aiohttp import web
from localstripe.resources import Store
from localstripe.server import app


async def serve():
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


Store.dump_to_disk = lambda store: None
asyncio.run(serve())
