/** UTF-8, in terms of the engine's native functions, which are much faster than loops. */

const CHUNK = 8_192;

export function decodeUtf8(bytes: Uint8Array, fatal: boolean): string {
  let binary = "";
  for (let at = 0; at < bytes.length; at += CHUNK) {
    binary += String.fromCharCode.apply(null, bytes.subarray(at, at + CHUNK) as unknown as number[]);
  }
  if (!/[\x80-\xff]/.test(binary)) return binary;
  try {
    return decodeURIComponent(escape(binary));
  } catch {
    if (fatal) throw new TypeError("the bytes are not valid UTF-8");
    return decodeLossy(bytes);
  }
}

/** Replaces invalid sequences as the Encoding standard says. */
function decodeLossy(bytes: Uint8Array): string {
  let text = "";
  let code = 0;
  let needed = 0;
  let lower = 0x80;
  let upper = 0xbf;
  for (let at = 0; at < bytes.length; at += 1) {
    const byte = bytes[at] as number;
    if (needed === 0) {
      if (byte < 0x80) text += String.fromCharCode(byte);
      else if (byte >= 0xc2 && byte <= 0xf4) {
        needed = byte < 0xe0 ? 1 : byte < 0xf0 ? 2 : 3;
        code = byte & (needed === 1 ? 0x1f : needed === 2 ? 0x0f : 0x07);
        lower = byte === 0xe0 ? 0xa0 : byte === 0xf0 ? 0x90 : 0x80;
        upper = byte === 0xed ? 0x9f : byte === 0xf4 ? 0x8f : 0xbf;
      } else text += "\ufffd";
    } else if (byte < lower || byte > upper) {
      text += "\ufffd";
      needed = 0;
      lower = 0x80;
      upper = 0xbf;
      at -= 1;
    } else {
      lower = 0x80;
      upper = 0xbf;
      code = (code << 6) | (byte & 0x3f);
      needed -= 1;
      if (needed === 0) text += String.fromCodePoint(code);
    }
  }
  return needed === 0 ? text : `${text}\ufffd`;
}

export function encodeUtf8(text: string): Uint8Array {
  const binary = unescape(encodeURIComponent(text.toWellFormed()));
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at += 1) bytes[at] = binary.charCodeAt(at);
  return bytes;
}

export class ComponentTextEncoder {
  readonly encoding = "utf-8";

  encode(text = ""): Uint8Array {
    return encodeUtf8(String(text));
  }

  encodeInto(text: string, target: Uint8Array): { read: number; written: number } {
    let read = 0;
    let written = 0;
    for (const character of text) {
      const bytes = encodeUtf8(character);
      if (written + bytes.length > target.length) break;
      target.set(bytes, written);
      written += bytes.length;
      read += character.length;
    }
    return { read, written };
  }
}

export class ComponentTextDecoder {
  readonly encoding = "utf-8";
  readonly fatal: boolean;
  readonly ignoreBOM: boolean;
  #rest = new Uint8Array();

  constructor(label = "utf-8", options: { fatal?: boolean; ignoreBOM?: boolean } = {}) {
    if (!/^\s*(?:unicode-1-1-)?utf-?8\s*$/i.test(label)) {
      throw new RangeError(`the encoding \`${label}\` is not supported; use \`utf-8\``);
    }
    this.fatal = options.fatal ?? false;
    this.ignoreBOM = options.ignoreBOM ?? false;
  }

  decode(input?: ArrayBuffer | ArrayBufferView, options: { stream?: boolean } = {}): string {
    let bytes = bytesOf(input);
    if (this.#rest.length > 0) {
      const joined = new Uint8Array(this.#rest.length + bytes.length);
      joined.set(this.#rest);
      joined.set(bytes, this.#rest.length);
      bytes = joined;
    }
    const end = options.stream ? completeLength(bytes) : bytes.length;
    this.#rest = bytes.slice(end);
    const text = decodeUtf8(bytes.subarray(0, end), this.fatal);
    return !this.ignoreBOM && text.startsWith("\ufeff") ? text.slice(1) : text;
  }
}

function bytesOf(input: ArrayBuffer | ArrayBufferView | undefined): Uint8Array {
  if (input === undefined) return new Uint8Array();
  if (input instanceof Uint8Array) return input;
  if (ArrayBuffer.isView(input)) return new Uint8Array(input.buffer, input.byteOffset, input.byteLength);
  return new Uint8Array(input);
}

/** The length without an unfinished character at the end. */
function completeLength(bytes: Uint8Array): number {
  for (let back = 1; back <= Math.min(3, bytes.length); back += 1) {
    const byte = bytes[bytes.length - back] as number;
    if (byte < 0x80) break;
    if (byte >= 0xc0) return back < (byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4) ? bytes.length - back : bytes.length;
  }
  return bytes.length;
}
