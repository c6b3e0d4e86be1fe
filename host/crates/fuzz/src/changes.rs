//! Random changes to examples. A failing input is reduced to one with as few changes as possible.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// The maximum length of an input in bytes.
const MAX_BYTES: usize = 32 << 10;

/// Texts that parsers treat specially, or whose value is at a limit.
const TOKENS: &[&str] = &[
    "\0",
    "\t",
    "\n",
    "\r\n",
    " ",
    "\u{a0}",
    "\u{feff}",
    "\u{202e}",
    "é",
    "🎉",
    "\u{7f}",
    "\\",
    "\"",
    "'",
    "\\u0000",
    "\\ud800",
    "\\udc00",
    "\\u0041",
    "%",
    "%00",
    "%2f",
    "%ff",
    "+",
    "-",
    "-1",
    "0",
    "00",
    "1",
    "31",
    "60",
    "255",
    "256",
    "4294967296",
    "9223372036854775807",
    "18446744073709551616",
    "1e400",
    "0.1",
    "NaN",
    "null",
    "true",
    "{",
    "}",
    "[",
    "]",
    "[]",
    "{}",
    "[[",
    "${",
    "$",
    "(",
    ")",
    "<",
    ">",
    ",",
    ";",
    ":",
    "=",
    "&",
    "?",
    "#",
    "/",
    "//",
    "..",
    ".",
    "*",
    "@",
    "|",
    "$serde_json::private::RawValue",
];

/// An example, by its place in the corpus, and its changes.
#[derive(Debug, Clone)]
pub(super) struct Changed {
    example: Index,
    changes: Vec<Change>,
}

#[derive(Debug, Clone)]
enum Change {
    Remove {
        at: Index,
        length: usize,
    },
    Overwrite {
        at: Index,
        byte: u8,
    },
    Insert {
        at: Index,
        token: &'static str,
    },
    InsertBytes {
        at: Index,
        bytes: Vec<u8>,
    },
    Repeat {
        at: Index,
        length: usize,
        times: usize,
    },
    /// Copies a part of an example.
    Copy {
        at: Index,
        example: Index,
        start: Index,
        length: usize,
    },
    /// Replaces a word by a word of an example.
    Word {
        word: Index,
        example: Index,
        by: Index,
    },
}

/// Generates changed examples.
pub(super) fn inputs(examples: usize) -> impl Strategy<Value = Changed> {
    assert!(examples > 0, "a corpus has at least one example");
    let changes = prop_oneof![
        2 => vec(any_change(), 1..4),
        1 => vec(any_change(), 1..12),
    ];
    (any::<Index>(), changes).prop_map(|(example, changes)| Changed { example, changes })
}

fn any_change() -> impl Strategy<Value = Change> {
    let at = any::<Index>;
    prop_oneof![
        (at(), 1..16_usize).prop_map(|(at, length)| Change::Remove { at, length }),
        (at(), any::<u8>()).prop_map(|(at, byte)| Change::Overwrite { at, byte }),
        (at(), select(TOKENS)).prop_map(|(at, token)| Change::Insert { at, token }),
        (at(), vec(any::<u8>(), 1..8)).prop_map(|(at, bytes)| Change::InsertBytes { at, bytes }),
        (at(), 1..64_usize, prop_oneof![4 => 1..4_usize, 1 => 4..2_000_usize])
            .prop_map(|(at, length, times)| Change::Repeat { at, length, times }),
        (at(), at(), at(), 1..200_usize).prop_map(|(at, example, start, length)| Change::Copy {
            at,
            example,
            start,
            length
        }),
        (at(), at(), at()).prop_map(|(word, example, by)| Change::Word { word, example, by }),
    ]
}

impl Changed {
    pub(super) fn apply(&self, examples: &[Vec<u8>]) -> Vec<u8> {
        let mut input = self.example.get(examples).clone();
        for change in &self.changes {
            change.apply(&mut input, examples);
            input.truncate(MAX_BYTES);
        }
        input
    }
}

impl Change {
    fn apply(&self, input: &mut Vec<u8>, examples: &[Vec<u8>]) {
        let place = |index: &Index, bytes: &[u8]| index.index(bytes.len() + 1);
        match self {
            Self::Remove { at, length } => {
                let at = place(at, input);
                input.drain(at..input.len().min(at + length));
            }
            Self::Overwrite { at, byte } => {
                let at = place(at, input);
                input.splice(at..input.len().min(at + 1), [*byte]);
            }
            Self::Insert { at, token } => insert(input, place(at, input), token.as_bytes()),
            Self::InsertBytes { at, bytes } => insert(input, place(at, input), bytes),
            Self::Repeat { at, length, times } => {
                let at = place(at, input);
                let repeated = input[at..input.len().min(at + length)].repeat(*times);
                insert(input, at, &repeated);
            }
            Self::Copy { at, example, start, length } => {
                let example = example.get(examples);
                let start = place(start, example);
                insert(input, place(at, input), &example[start..example.len().min(start + length)]);
            }
            Self::Word { word, example, by } => {
                let example = example.get(examples);
                let (replaced, replacements) = (words(input), words(example));
                if replaced.is_empty() || replacements.is_empty() {
                    return;
                }
                let replacement = example[by.get(&replacements).clone()].to_vec();
                input.splice(word.get(&replaced).clone(), replacement);
            }
        }
    }
}

fn insert(input: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    input.splice(at..at, bytes.iter().copied());
}

/// Returns the places of words, which consist of letters and digits.
fn words(bytes: &[u8]) -> Vec<std::ops::Range<usize>> {
    let mut words = Vec::new();
    let mut start = None;
    for (at, byte) in bytes.iter().chain([&b' ']).enumerate() {
        match (byte.is_ascii_alphanumeric() || *byte >= 0x80, start) {
            (true, None) => start = Some(at),
            (false, Some(first)) => {
                words.push(first..at);
                start = None;
            }
            _ => {}
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_at_every_place() {
        assert_eq!(words(b"ab, c"), [0..2, 4..5]);
        assert_eq!(words(b" , "), []);
    }

    proptest! {
        #[test]
        fn an_input_is_never_too_long(changed in inputs(2)) {
            let examples = [b"abc, ".repeat(MAX_BYTES / 5), b"x".to_vec()];
            prop_assert!(changed.apply(&examples).len() <= MAX_BYTES);
        }
    }
}
