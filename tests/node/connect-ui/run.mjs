// Runs scenarios: `node run.mjs '{"host": …, "secretKey": …, "shopKey": …, "scenarios": […], "screenshots": …}'`.

import * as scenarios from './scenarios.mjs';
import { Stage } from './stage.mjs';

const options = JSON.parse(process.argv[2]);
const stage = await Stage.start(options);
try {
    for (const name of options.scenarios) {
        const began = performance.now();
        try {
            await scenarios[name](stage, options);
        } catch (error) {
            console.error(`${name}: ${error.stack}`);
            process.exitCode = 1;
        }
        console.log(`${name} took ${Math.round(performance.now() - began)} ms`);
    }
} finally {
    await stage.stop();
}
