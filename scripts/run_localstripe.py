"""Runs localstripe on a free local port and prints the port. Stores nothing on disk.

The package's own command listens on all addresses and writes its data to a file after each change.
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
