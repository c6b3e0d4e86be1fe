//! Splits, validates and hashes a batch of records in one walk over its text, before it is stored.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;

use serde::Serialize;

use super::canonical::ChangeHash;
use super::json::Malformed;
use super::problem::Problem;
use super::shape::{Invalid, Shape};
use super::strings::unescape;
use super::walk::{Edit, IdText, Record, Walk};

/// Maximum length of a record's id, in bytes.
pub const MAX_ID_BYTES: usize = 255;

/// A record that is ready to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordText<'t> {
    /// Index in the batch, from 0.
    pub index: usize,
    /// The payload's `id`. For an integer, the digits that were sent.
    pub id: Cow<'t, str>,
    /// The object as it was sent, except that an integer `id` is a string and the metadata key is removed.
    pub payload: Cow<'t, str>,
    pub hash: ChangeHash,
}

/// A record that cannot be stored, and the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RefusedRecord<'t> {
    /// Index in the batch, from 0.
    pub index: usize,
    /// None if the id itself is wrong.
    pub id: Option<Cow<'t, str>>,
    pub problems: Vec<Problem>,
    /// The text as it was sent. It may contain secrets: for the store, not for logs.
    #[serde(skip)]
    pub text: &'t str,
}

/// The records of a batch, in its order.
#[derive(Debug, Default)]
pub struct Batch<'t> {
    pub records: Vec<RecordText<'t>>,
    pub refused: Vec<RefusedRecord<'t>>,
}

/// The reason why a text is not a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    #[error("the records must be a JSON array of objects")]
    NotAnArray,
    #[error("record {index} is {malformed}")]
    Malformed { index: usize, malformed: Malformed },
}

/// How records of a model are read.
#[derive(Clone, Copy)]
pub struct RecordOptions<'o> {
    /// The member in which readers find the host's metadata. Such a member of an incoming record is dropped.
    pub metadata_key: &'o str,
    /// Maximum length of a record in bytes.
    pub max_bytes: usize,
}

/// Splits a JSON array into records of this shape. Records that do not match are returned as refused. The function
/// fails only if the text is not a JSON array.
pub fn split<'t>(items: &'t str, shape: &Shape, options: RecordOptions<'_>) -> Result<Batch<'t>, BatchError> {
    let mut walk = Walk::new(items, shape);
    let mut record = Record::new(options.metadata_key);
    let mut batch = Batch::default();
    walk.scanner.skip_space();
    walk.scanner.expect(b'[', "`[`").map_err(|_| BatchError::NotAnArray)?;
    walk.scanner.skip_space();
    if walk.scanner.peek() == b']' {
        walk.scanner.at += 1;
    } else {
        for index in 0.. {
            let malformed = |malformed| BatchError::Malformed { index, malformed };
            match next_record(&mut walk, &mut record, &options, index, 1).map_err(malformed)? {
                Ok(text) => batch.records.push(text),
                Err(refused) => batch.refused.push(refused),
            }
            walk.scanner.skip_space();
            if walk.scanner.peek() != b',' {
                walk.scanner.expect(b']', "`,` or `]` after a record").map_err(malformed)?;
                break;
            }
            walk.scanner.at += 1;
            walk.scanner.skip_space();
        }
    }
    let index = batch.records.len() + batch.refused.len();
    walk.scanner.finish().map_err(|malformed| BatchError::Malformed { index, malformed })?;
    Ok(batch)
}

/// Reads one record, such as the result of merging a change into a stored payload.
pub fn single<'t>(
    text: &'t str,
    shape: &Shape,
    options: RecordOptions<'_>,
) -> Result<RecordText<'t>, Invalid> {
    let mut walk = Walk::new(text, shape);
    let mut record = Record::new(options.metadata_key);
    walk.scanner.skip_space();
    let result = next_record(&mut walk, &mut record, &options, 0, 0)?;
    walk.scanner.finish()?;
    result.map_err(|refused| Invalid::Problems(refused.problems))
}

/// Keeps the last of several records with the same id, and returns the number of removed ones.
pub fn dedupe(records: &mut Vec<RecordText<'_>>) -> usize {
    let mut later = HashSet::with_capacity(records.len());
    let superseded: Vec<bool> = records.iter().rev().map(|record| !later.insert(&*record.id)).collect();
    let count = superseded.iter().filter(|superseded| **superseded).count();
    if count > 0 {
        let mut superseded = superseded.iter().rev();
        records.retain(|_| superseded.next() == Some(&false));
    }
    count
}

/// Appends a stored payload with the host's metadata as its last member. `payload` is the payload of an accepted
/// record, so it has at least an id. `metadata` is JSON.
pub fn splice_metadata(payload: &str, metadata_key: &str, metadata: &str, out: &mut Vec<u8>) {
    let open = payload.strip_suffix('}').unwrap_or(payload);
    out.reserve(payload.len() + metadata_key.len() + metadata.len() + 4);
    for part in [open, ",\"", metadata_key, "\":", metadata, "}"] {
        out.extend_from_slice(part.as_bytes());
    }
}

/// Reads the next record of the walk, `depth` levels down.
fn next_record<'t>(
    walk: &mut Walk<'t, '_>,
    record: &mut Record<'_>,
    options: &RecordOptions<'_>,
    index: usize,
    depth: usize,
) -> Result<Result<RecordText<'t>, RefusedRecord<'t>>, Malformed> {
    let start = walk.scanner.at;
    let text = walk.scanner.text;
    if walk.scanner.peek() != b'{' {
        let given = walk.non_record(depth)?;
        let problems = vec![Problem::here(format!("expected object, got {given}"))];
        return Ok(Err(RefusedRecord { index, id: None, problems, text: &text[start..walk.scanner.at] }));
    }
    let form = walk.record(record, depth)?;
    let range = start..walk.scanner.at;
    let id = id(text, record);
    let mut problems = walk.problems.take();
    if range.len() > options.max_bytes {
        let problem =
            format!("has {} bytes, expected at most {} (limit `record`)", range.len(), options.max_bytes);
        problems.insert(0, Problem::here(problem));
    }
    match id {
        Ok(id) if problems.is_empty() => {
            let hash = ChangeHash::of(walk.assembly.bytes(form));
            let payload = payload(text, range, &record.edits);
            Ok(Ok(RecordText { index, id, payload, hash }))
        }
        id => {
            let id = id.map_err(|problem| problems.insert(0, problem)).ok();
            Ok(Err(RefusedRecord { index, id, problems, text: &text[range] }))
        }
    }
}

fn id<'t>(text: &'t str, record: &Record<'_>) -> Result<Cow<'t, str>, Problem> {
    let problem = |problem: String| Problem { path: "/id".to_owned(), problem };
    let id = match &record.id {
        Some(IdText::String(content)) => unescape(&text[content.clone()]),
        Some(IdText::Integer(digits)) => Cow::Borrowed(&text[digits.clone()]),
        Some(IdText::Other(given)) => {
            return Err(problem(format!("expected string or integer, got {given}")));
        }
        None => return Err(problem("is missing, expected string or integer".to_owned())),
    };
    if id.is_empty() {
        return Err(problem(format!("is empty, expected 1 to {MAX_ID_BYTES} bytes")));
    }
    if id.len() > MAX_ID_BYTES {
        return Err(problem(format!("has {} bytes, expected at most {MAX_ID_BYTES}", id.len())));
    }
    if id.contains('\0') {
        return Err(problem("must not contain a NUL character".to_owned()));
    }
    Ok(id)
}

fn payload<'t>(text: &'t str, range: Range<usize>, edits: &[Edit]) -> Cow<'t, str> {
    if edits.is_empty() {
        return Cow::Borrowed(&text[range]);
    }
    let mut payload = String::with_capacity(range.len() + 2);
    let mut at = range.start;
    for edit in edits {
        let (Edit::Remove(part) | Edit::Quote(part)) = edit;
        payload.push_str(&text[at..part.start]);
        if let Edit::Quote(digits) = edit {
            payload.extend(["\"", &text[digits.clone()], "\""]);
        }
        at = part.end;
    }
    payload.push_str(&text[at..range.end]);
    Cow::Owned(payload)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::super::{Field, Model, Models, ObjectType};
    use super::*;

    const OPTIONS: RecordOptions<'_> = RecordOptions { metadata_key: "_meta", max_bytes: 1_000 };

    fn shape(fields: &[(&str, &str)]) -> Shape {
        let field = |(name, ty): &(&str, &str)| Field { name: (*name).to_owned(), ty: ty.parse().unwrap() };
        let object = ObjectType { fields: fields.iter().map(field).collect(), strict: true };
        let name = "Customer".parse().unwrap();
        Shape::of_model(&name, &Models::from([(name.clone(), Model::Object(object))])).unwrap()
    }

    fn split_any(items: &str) -> Batch<'_> {
        split(items, &Shape::any(), OPTIONS).unwrap()
    }

    /// Returns index and problems of each refused record.
    fn refusals(items: &str, shape: &Shape) -> Vec<(usize, String)> {
        let batch = split(items, shape, OPTIONS).unwrap();
        let text = |refused: &RefusedRecord<'_>| Invalid::Problems(refused.problems.clone()).to_string();
        batch.refused.iter().map(|refused| (refused.index, text(refused))).collect()
    }

    #[test]
    fn records_are_stored_as_they_were_sent() {
        let items = " [ {\"n\" : 1.50, \"id\":\"a\\n\\u00e9\"} ,{\"id\":\"🎉 \\\"\"}\n] ";
        let batch = split_any(items);
        assert!(batch.refused.is_empty());
        let records: Vec<_> = batch.records.iter().map(|record| (&*record.id, &*record.payload)).collect();
        assert_eq!(
            records,
            [("a\né", "{\"n\" : 1.50, \"id\":\"a\\n\\u00e9\"}"), ("🎉 \"", "{\"id\":\"🎉 \\\"\"}")]
        );
        assert!(matches!(batch.records[0].payload, Cow::Borrowed(_)));
        assert!(split_any("[ ]").records.is_empty());
    }

    #[test]
    fn an_integer_id_becomes_text_and_keeps_its_digits() {
        let items = r#"[{"id": 12345678901234567890123 ,"a":1},{"id":"12345678901234567890123","a":1}]"#;
        let records = split_any(items).records;
        assert_eq!(records[0].id, "12345678901234567890123");
        assert_eq!(records[0].payload, r#"{"id": "12345678901234567890123" ,"a":1}"#);
        assert_eq!(records[0].hash, records[1].hash);
    }

    #[test]
    fn invalid_ids_are_reported_with_index_and_path() {
        let long = format!(r#"{{"id":"{}"}}"#, "x".repeat(300));
        let items = [
            r#"{"a":1}"#,
            r#"{"id":""}"#,
            &long,
            r#"{"id":"a\u0000b"}"#,
            r#"{"id":null}"#,
            r#"{"id":1.5}"#,
            r#"{"id":{"id":"x"}}"#,
            r#""text""#,
            r#"{"id":"\ud800"}"#,
            r#"{"id":"fine"}"#,
        ];
        let items = format!("[{}]", items.join(","));
        let expected = [
            "at /id: is missing, expected string or integer",
            "at /id: is empty, expected 1 to 255 bytes",
            "at /id: has 300 bytes, expected at most 255",
            "at /id: must not contain a NUL character",
            "at /id: expected string or integer, got null",
            "at /id: expected string or integer, got number with a fraction or an exponent",
            "at /id: expected string or integer, got object",
            "expected object, got string",
            "at /id: is not valid Unicode: it contains half of a surrogate pair (`\\ud800` to `\\udfff`)",
        ];
        let expected: Vec<_> = expected.into_iter().map(str::to_owned).enumerate().collect();
        assert_eq!(refusals(&items, &Shape::any()), expected);
        assert_eq!(refusals(&items, &shape(&[("id", "string"), ("a", "json?")])), expected);
    }

    #[test]
    fn the_length_of_an_id_is_counted_in_unescaped_bytes() {
        let fits = format!(r#"[{{"id":"{}"}}]"#, r"\u00e9".repeat(127));
        assert_eq!(split_any(&fits).records[0].id.len(), 254);
        let too_long = format!(r#"[{{"id":"{}"}}]"#, r"\u00e9".repeat(128));
        assert_eq!(refusals(&too_long, &Shape::any())[0].1, "at /id: has 256 bytes, expected at most 255");
    }

    #[test]
    fn a_record_that_is_too_long_does_not_affect_others() {
        let long = format!(r#"{{"id":"long","n":"{}"}}"#, "x".repeat(1_000));
        let items = format!(r#"[{{"id":"short"}},{long}]"#);
        assert_eq!(
            refusals(&items, &Shape::any()),
            [(1, "has 1020 bytes, expected at most 1000 (limit `record`)".to_owned())]
        );
    }

    #[test]
    fn a_refused_record_does_not_affect_others() {
        let items = r#"[{"id":"1","n":1},{"id":"2","n":"x","m":0},{"id":"3","n":3}]"#;
        let batch = split(items, &shape(&[("id", "string"), ("n", "integer")]), OPTIONS).unwrap();
        assert_eq!(batch.records.iter().map(|record| &*record.id).collect::<Vec<_>>(), ["1", "3"]);
        let [refused] = &batch.refused[..] else { panic!("{:?}", batch.refused) };
        assert_eq!((refused.index, refused.id.as_deref()), (1, Some("2")));
        assert_eq!(refused.text, r#"{"id":"2","n":"x","m":0}"#);
        assert_eq!(
            serde_json::to_value(refused).unwrap(),
            json!({"index": 1, "id": "2", "problems": [
                {"path": "/n", "problem": "expected integer, got string"},
                {"path": "/m", "problem": "is not declared, and the model is strict"},
            ]})
        );
    }

    #[test]
    fn a_text_that_is_not_a_batch_is_refused_as_a_whole() {
        let refusal = |items| split(items, &Shape::any(), OPTIONS).unwrap_err().to_string();
        assert_eq!(refusal(r#"{"id":"1"}"#), "the records must be a JSON array of objects");
        assert_eq!(refusal(r#"[{"id":"1"},{"id":}]"#), "record 1 is not JSON: expected a value at byte 18");
        assert_eq!(
            refusal(r#"[{"id":"1"}"#),
            "record 0 is not JSON: expected `,` or `]` after a record at byte 11"
        );
        assert_eq!(
            refusal(r#"[{"id":"1"}] x"#),
            "record 1 is not JSON: expected the end of the text at byte 13"
        );
    }

    #[test]
    fn an_integer_id_can_be_saved_again_as_text() {
        let shape = shape(&[("id", "integer")]);
        assert!(refusals(r#"[{"id":7},{"id":"7"},{"id":"-70"}]"#, &shape).is_empty());
        assert_eq!(
            refusals(r#"[{"id":"x"}]"#, &shape),
            [(0, "at /id: expected integer, got string".to_owned())]
        );
        let schema = json!({"properties": {"id": {"type": "integer"}, "n": {"type": "integer"}}, "additionalProperties": false});
        let name: syncline_types::ids::ModelName = "Odd".parse().unwrap();
        let models = Models::from([(name.clone(), Model::Schema { file: "odd.json".to_owned(), schema })]);
        let shape = Shape::of_model(&name, &models).unwrap();
        assert!(refusals(r#"[{"id":"7","_meta":{}}]"#, &shape).is_empty());
        assert_eq!(
            refusals(r#"[{"id":"7","n":"7"}]"#, &shape),
            [(0, "at /n: expected integer, got string".to_owned())]
        );
    }

    #[test]
    fn the_last_of_several_records_with_one_id_is_kept() {
        let mut records =
            split_any(r#"[{"id":1},{"id":"2"},{"id":"1","last":true},{"id":3},{"id":"2","last":true}]"#)
                .records;
        assert_eq!(dedupe(&mut records), 2);
        let left: Vec<_> = records.iter().map(|record| &*record.payload).collect();
        assert_eq!(left, [r#"{"id":"1","last":true}"#, r#"{"id":"3"}"#, r#"{"id":"2","last":true}"#]);
        assert_eq!(dedupe(&mut records), 0);
    }

    #[test]
    fn metadata_is_the_last_member() {
        let mut out = b"[".to_vec();
        splice_metadata(r#"{"id":"1" }"#, "_meta", r#"{"cursor":"x"}"#, &mut out);
        assert_eq!(out, br#"[{"id":"1" ,"_meta":{"cursor":"x"}}"#);
    }

    #[test]
    fn a_merged_record_is_validated_like_a_sent_one() {
        let shape = shape(&[("id", "integer"), ("n", "integer")]);
        let record = single(r#" {"n":1,"id":"7"} "#, &shape, OPTIONS).unwrap();
        assert_eq!(record, split(r#"[{"n":1,"id":"7"}]"#, &shape, OPTIONS).unwrap().records[0]);
        assert_eq!(
            single(r#"{"id":"7"}"#, &shape, OPTIONS).unwrap_err().to_string(),
            "at /n: is missing, expected integer"
        );
        assert!(matches!(single(r#"{"id":"7""#, &shape, OPTIONS), Err(Invalid::Malformed(_))));
    }

    proptest! {
        #[test]
        fn the_metadata_key_is_removed_at_any_position(
            keys in proptest::collection::vec("_meta|_m\\\\u0065ta|[a-c]", 0..7),
            id_at in any::<proptest::sample::Index>(),
            id_is_integer in any::<bool>(),
            space in "[ \n]{0,2}",
        ) {
            let mut members: Vec<String> = keys.iter().map(|key| format!(r#""{key}"{space}:[0,{{}}]"#)).collect();
            let id = if id_is_integer { "7" } else { r#""7""# };
            members.insert(id_at.index(keys.len() + 1), format!(r#""id":{id}"#));
            let text = format!("{{{space}{}{space}}}", members.join(&format!("{space},{space}")));
            let mut expected: Value = serde_json::from_str(&text).unwrap();
            expected.as_object_mut().unwrap().remove("_meta");
            expected["id"] = json!("7");

            let items = format!("[{text}]");
            let record = &split_any(&items).records[0];
            let payload: Value = serde_json::from_str(&record.payload).map_err(|error| {
                TestCaseError::fail(format!("{} became {}: {error}", text, record.payload))
            })?;
            prop_assert_eq!(payload, expected);
            let hash = super::super::canonical_hash(&record.payload).unwrap();
            prop_assert_eq!(record.hash, hash);
        }
    }
}
