// The action `echo` of the minimal example once more, to tell what the language costs.

type Json = string;

class Failure extends Error {
  // What the component model makes the error of a `result` from.
  readonly payload: { code: string; message: string; details?: Json };

  constructor(code: string, message: string) {
    super(message);
    this.payload = { code, message };
  }
}

/** The interface `functions` of the world. */
export const functions = {
  describe(): Json {
    const functions = [{ kind: "action", name: "echo", description: "Gives back what it is given." }];
    return JSON.stringify({ sdk: { name: "none", version: "0.1.0" }, functions });
  },

  invoke(kind: string, name: string, input?: Json): Json | undefined {
    if (kind !== "action" || name !== "echo") {
      throw new Failure("unknown-function", `there is no ${kind} \`${name}\``);
    }
    return echo(input);
  },
};

/** Takes the value apart and writes it anew, as a function that looks at its input does. */
function echo(input?: Json): Json | undefined {
  return input === undefined ? undefined : JSON.stringify(JSON.parse(input));
}
