/**
 * Lets Node.js import TypeScript files: `node --import @syncline/sdk/register --test`. Types are removed and not
 * checked.
 */
import { register } from "node:module";

register("./register-hooks.js", import.meta.url);
