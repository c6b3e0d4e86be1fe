// The headless Chromium of the tests.

import { chromium } from 'playwright-core';

export function launch() {
    return chromium.launch({
        executablePath: '/usr/bin/chromium',
        args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking'],
    });
}
