// A small backend: node backend.mjs connect USER | records CONNECTION | action CONNECTION NAME | listen
import { randomUUID } from "node:crypto";
import { readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { text } from "node:stream/consumers";
import { createConnectSession, readRecords, triggerAction, verifyWebhook } from "./syncline.mjs";

const INTEGRATION = process.env.INTEGRATION ?? "stripe";
const MODEL = process.env.MODEL ?? "Customer";
const PORT = Number(process.env.PORT ?? 4567);

const commands = {
    /** Prints a link on which the user connects an account. */
    async connect(userId) {
        const session = await createConnectSession({ id: userId }, INTEGRATION);
        console.log(session.connect_link);
    },

    /** Prints the changes since the last call. The cursor is stored in a file; store it in your database instead. */
    async records(connectionId) {
        const file = `cursor-${connectionId}.txt`;
        let cursor = readIfPresent(file);
        let count = 0;
        for await (const record of readRecords({ connectionId, integration: INTEGRATION }, MODEL, cursor)) {
            const { last_action, cursor: position } = record._service_metadata;
            if (count < 3) {
                console.log(last_action, record.id);
            }
            count += 1;
            cursor = position;
        }
        if (cursor) {
            writeFileSync(file, cursor);
        }
        console.log(`${count} changes`);
    },

    /** Runs the action `create-customer`. */
    async action(connectionId, name) {
        const connection = { connectionId, integration: INTEGRATION };
        console.log(await triggerAction(connection, "create-customer", { name }, randomUUID()));
    },

    /** Receives webhooks from Syncline until it is stopped. */
    listen() {
        const seen = new Set(); // Webhooks are delivered at least once. Their ids identify duplicates.
        const server = createServer(async (request, response) => {
            const body = await text(request);
            try {
                const event = verifyWebhook(process.env.WEBHOOK_SIGNING_KEY, request.headers, body);
                const id = request.headers["webhook-id"];
                if (!seen.has(id)) {
                    seen.add(id);
                    console.log(event.type, event.connectionId, event.model ?? "", event.responseResults ?? "");
                }
                response.writeHead(204).end();
            } catch (error) {
                console.error(error.message);
                response.writeHead(401).end();
            }
        });
        server.listen(PORT, "127.0.0.1", () => console.log(`listening on http://127.0.0.1:${PORT}`));
    },
};

function readIfPresent(file) {
    try {
        return readFileSync(file, "utf8");
    } catch {
        return undefined;
    }
}

const [name, ...args] = process.argv.slice(2);
if (!Object.hasOwn(commands, name ?? "")) {
    console.error("usage: node backend.mjs connect USER | records CONNECTION | action CONNECTION NAME | listen");
    process.exit(2);
}
try {
    await commands[name](...args);
} catch (error) {
    console.error(`${error.code ?? "error"}: ${error.message}`);
    process.exit(1);
}
