//! Cursors: where a reader resumes. A cursor is an opaque text that contains a stream and a position in it, with a
//! checksum, so that cursors of other streams and mistyped cursors are detected.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use syncline_store::streams::StreamKey;
use syncline_types::ids::ConnectionPk;

const FORMAT: u8 = 1;
const BYTES: usize = 1 + 8 + 4 + 8 + CHECK_BYTES;
const CHECK_BYTES: usize = 3;
/// Base64 of [`BYTES`], which three divides.
const DIGITS: usize = BYTES / 3 * 4;

/// Why a text is not a cursor of this stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidCursor {
    #[error("is not a cursor that Syncline has issued")]
    Broken,
    #[error("belongs to another connection, model or variant")]
    OtherStream,
    #[error("belongs to a model without records")]
    NoStream,
}

/// Appends the cursor of a position to `out`.
pub fn encode(stream: StreamKey, position: i64, out: &mut Vec<u8>) {
    let mut bytes = [0; BYTES];
    bytes[0] = FORMAT;
    bytes[1..9].copy_from_slice(&stream.connection.0.to_be_bytes());
    bytes[9..13].copy_from_slice(&stream.number.to_be_bytes());
    bytes[13..21].copy_from_slice(&position.to_be_bytes());
    let check = check(&bytes);
    bytes[21..].copy_from_slice(&check);
    let mut digits = [0; DIGITS];
    let written = URL_SAFE_NO_PAD.encode_slice(bytes, &mut digits).expect("the digits fit");
    out.extend_from_slice(&digits[..written]);
}

/// Returns the cursor of a position as text.
pub fn to_text(stream: StreamKey, position: i64) -> String {
    let mut text = Vec::with_capacity(DIGITS);
    encode(stream, position, &mut text);
    String::from_utf8(text).expect("a cursor is ASCII")
}

/// Returns the position of a cursor. Without a cursor, it is 0, which is before all records.
pub fn start(text: Option<&str>, stream: Option<StreamKey>) -> Result<i64, InvalidCursor> {
    match (text, stream) {
        (None, _) => Ok(0),
        (Some(_), None) => Err(InvalidCursor::NoStream),
        (Some(text), Some(stream)) => decode(text, stream),
    }
}

/// Returns the position of a cursor of this stream.
fn decode(text: &str, stream: StreamKey) -> Result<i64, InvalidCursor> {
    let decoded = URL_SAFE_NO_PAD.decode(text).map_err(|_| InvalidCursor::Broken)?;
    let bytes: [u8; BYTES] = decoded.try_into().map_err(|_| InvalidCursor::Broken)?;
    if bytes[0] != FORMAT || bytes[21..] != check(&bytes) {
        return Err(InvalidCursor::Broken);
    }
    let connection = i64::from_be_bytes(bytes[1..9].try_into().map_err(|_| InvalidCursor::Broken)?);
    let number = i32::from_be_bytes(bytes[9..13].try_into().map_err(|_| InvalidCursor::Broken)?);
    if (StreamKey { connection: ConnectionPk(connection), number }) != stream {
        return Err(InvalidCursor::OtherStream);
    }
    let position = i64::from_be_bytes(bytes[13..21].try_into().map_err(|_| InvalidCursor::Broken)?);
    Ok(position)
}

fn check(bytes: &[u8; BYTES]) -> [u8; CHECK_BYTES] {
    let hash = blake3::hash(&bytes[..BYTES - CHECK_BYTES]);
    let mut check = [0; CHECK_BYTES];
    check.copy_from_slice(&hash.as_bytes()[..CHECK_BYTES]);
    check
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_error_says_what_is_wrong_with_a_cursor() {
        let [one, other] = [1, 2].map(|number| StreamKey { connection: ConnectionPk(1), number });
        let problem = |text: &str| decode(text, one).map_err(|invalid| invalid.to_string());
        assert_eq!(problem("mistyped"), Err("is not a cursor that Syncline has issued".to_owned()));
        assert_eq!(
            problem(&to_text(other, 1)),
            Err("belongs to another connection, model or variant".to_owned())
        );
    }

    #[test]
    fn a_reader_without_a_cursor_starts_before_all_records() {
        let stream = StreamKey { connection: ConnectionPk(1), number: 2 };
        let other = StreamKey { connection: ConnectionPk(1), number: 3 };
        let cursor = to_text(stream, 42);
        assert_eq!(start(None, Some(stream)), Ok(0));
        assert_eq!(start(None, None), Ok(0));
        assert_eq!(start(Some(&cursor), Some(stream)), Ok(42));
        assert_eq!(start(Some(&cursor), Some(other)), Err(InvalidCursor::OtherStream));
        assert_eq!(start(Some(&cursor), None), Err(InvalidCursor::NoStream));
    }

    mod fuzz {
        use super::*;

        #[test]
        fn an_accepted_cursor_prints_itself() {
            let read = |text: &str| {
                let stream = StreamKey { connection: ConnectionPk(7), number: 3 };
                decode(text, stream).map(|position| to_text(stream, position))
            };
            syncline_fuzz::check_text("record-cursors", |text| {
                if let Ok(printed) = read(text) {
                    assert_eq!(printed, text);
                }
                // With a right checksum, more than the checksum has to be right.
                let Ok(mut bytes) = URL_SAFE_NO_PAD.decode(text) else { return };
                bytes.resize(BYTES, 0);
                let Ok(mut bytes) = <[u8; BYTES]>::try_from(bytes) else { return };
                let check = check(&bytes);
                bytes[21..].copy_from_slice(&check);
                let checked = URL_SAFE_NO_PAD.encode(bytes);
                match read(&checked) {
                    Ok(printed) => assert_eq!(printed, checked),
                    Err(InvalidCursor::Broken) => assert_ne!(bytes[0], FORMAT),
                    Err(error) => assert_eq!(error, InvalidCursor::OtherStream),
                }
            });
        }
    }

    proptest! {
        #[test]
        fn a_cursor_decodes_to_its_position(connection: i64, number: i32, position: i64) {
            let stream = StreamKey { connection: ConnectionPk(connection), number };
            prop_assert_eq!(decode(&to_text(stream, position), stream), Ok(position));
        }

        #[test]
        fn a_cursor_of_another_stream_is_rejected(a: (i64, i32), b: (i64, i32), position: i64) {
            prop_assume!(a != b);
            let [a, b] = [a, b].map(|(pk, number)| StreamKey { connection: ConnectionPk(pk), number });
            prop_assert_eq!(decode(&to_text(a, position), b), Err(InvalidCursor::OtherStream));
        }

        #[test]
        fn a_changed_cursor_is_rejected(connection: i64, position: i64, at in 0..DIGITS, digit in "[A-Za-z0-9_-]") {
            let stream = StreamKey { connection: ConnectionPk(connection), number: 1 };
            let mut changed = to_text(stream, position);
            prop_assume!(changed[at..=at] != digit);
            changed.replace_range(at..=at, &digit);
            prop_assert!(decode(&changed, stream).is_err());
        }

        #[test]
        fn arbitrary_text_is_rejected(text in ".*") {
            let stream = StreamKey { connection: ConnectionPk(1), number: 1 };
            prop_assert!(decode(&text, stream).is_err());
        }
    }
}
