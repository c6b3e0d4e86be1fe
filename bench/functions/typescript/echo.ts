// The action `echo` of the minimal example, for measuring the cost of the language.

type Json = string;

class Failure extends Error {
  // The component model uses this as the error of a `result`.
  readonly payload: { code: string; message: string; details?: Json };

  constructor(code: string, message: string) {
    super(message);
    this.payload = { code, message };
  }
}

/** Implements the interface `functions` of the world. */
export const functions = {
  describe(): Json {
    const functions = [{ kind: "action", name: "echo", description: "Returns its input." }];
    return JSON.stringify({ sdk: { name: "none", version: "0.1.0" }, functions });
  },

  invoke(kind: string, name: string, input?: Json): Json | undefined {
    if (kind !== "action" || name !== "echo") {
      throw new Failure("unknown-function", `this component has no ${kind} \`${name}\``);
    }
    return echo(input);
  },
};

/** Parses and serializes the value, like a function that uses its input. */
function echo(input?: Json): Json | undefined {
  return input === undefined ? undefined : JSON.stringify(JSON.parse(input));
}
