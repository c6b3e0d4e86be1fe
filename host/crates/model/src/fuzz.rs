//! Properties of the walk over JSON text for generated inputs.

use serde::de::IgnoredAny;
use serde_json::Value;

use crate::records::{MAX_ID_BYTES, RecordOptions, splice_metadata, split};
use crate::{Models, Shape, canonical_hash, canonical_text, merge, with_whole_characters};

const METADATA_KEY: &str = "_metadata";
const OPTIONS: RecordOptions<'_> = RecordOptions { metadata_key: METADATA_KEY, max_bytes: 4_096 };
/// The quotes of an integer id and the metadata make a record longer.
const LONGER: RecordOptions<'_> = RecordOptions { max_bytes: usize::MAX, ..OPTIONS };
const MODELS: &str = r#"{"Order": {"object": {"strict": true, "fields": [
    {"name": "id", "type": "string"},
    {"name": "total", "type": "number"},
    {"name": "count", "type": {"optional": "integer"}},
    {"name": "at", "type": {"optional": "datetime"}},
    {"name": "state", "type": {"optional": {"enum": ["open", "paid"]}}},
    {"name": "lines", "type": {"array": {"object": {"strict": false, "fields": [
        {"name": "sku", "type": "string"}, {"name": "parent", "type": {"optional": {"model": "Order"}}}
    ]}}}}
]}}}"#;

/// Returns a valid JSON text with an escape for each character of its strings.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    let mut chars = text.chars();
    let mut is_in_string = false;
    while let Some(char) = chars.next() {
        match (char, is_in_string) {
            ('"', _) => {
                is_in_string = !is_in_string;
                escaped.push(char);
            }
            ('\\', true) => {
                escaped.push(char);
                match chars.next().unwrap() {
                    'u' => {
                        let digits: String = chars.by_ref().take(4).collect();
                        escaped.push_str(&format!("u{}", digits.to_ascii_uppercase()));
                    }
                    short => escaped.push(short),
                }
            }
            (_, true) => {
                let mut units = [0; 2];
                let units = char.encode_utf16(&mut units).iter();
                units.for_each(|unit| escaped.push_str(&format!("\\u{unit:04X}")));
            }
            (_, false) => escaped.push(char),
        }
    }
    escaped
}

#[test]
fn equal_json_has_one_canonical_form() {
    syncline_fuzz::check_text("json", |text| {
        let form = canonical_text(text);
        let is_json = serde_json::from_str::<IgnoredAny>(text).is_ok();
        let form = match form {
            Ok(form) => form,
            Err(malformed) => {
                assert!(malformed.at <= text.len());
                // serde_json skips values of any depth.
                let is_too_deep = malformed.expected.contains("levels");
                assert!(is_too_deep || !is_json, "{malformed}");
                return;
            }
        };
        assert!(is_json);
        assert!(form.len() <= text.len());
        assert_eq!(canonical_text(&form).as_ref(), Ok(&form));
        assert_eq!(canonical_text(&syncline_types::json::indented(text)).as_ref(), Ok(&form));
        assert_eq!(canonical_text(&escaped(text)).as_ref(), Ok(&form));
        assert_eq!(canonical_hash(&form), canonical_hash(text));

        let whole = with_whole_characters(text);
        assert_eq!(with_whole_characters(&whole), whole);
        let whole_form = canonical_text(&whole).unwrap();
        // `Value` cannot represent some numbers.
        if let Ok(value) = serde_json::from_str::<Value>(&whole) {
            assert_eq!(serde_json::from_str::<Value>(&whole_form).unwrap(), value);
        }
        if let Ok(merged) = merge(&whole, &whole) {
            assert_eq!(canonical_text(&merged), Ok(whole_form));
        }
    });
}

#[test]
fn accepted_records_stay_the_same_when_they_are_saved_again() {
    let any = Shape::any();
    let models: Models = serde_json::from_str(MODELS).unwrap();
    let order = Shape::of_model(&"Order".parse().unwrap(), &models).unwrap();
    syncline_fuzz::check_text("records", |text| {
        let batch = split(text, &any, OPTIONS);
        let is_array = canonical_text(text).is_ok_and(|form| form.starts_with('['));
        assert_eq!(batch.is_ok(), is_array);
        let Ok(batch) = batch else { return };
        let mut places: Vec<usize> = batch.records.iter().map(|record| record.index).collect();
        places.extend(batch.refused.iter().map(|record| record.index));
        places.sort_unstable();
        assert!(places.iter().copied().eq(0..places.len()));
        assert!(batch.refused.iter().all(|record| !record.problems.is_empty() && text.contains(record.text)));
        for record in &batch.records {
            assert!(!record.id.is_empty() && record.id.len() <= MAX_ID_BYTES);
            assert!(record.payload.len() <= text.len() + 2);
            assert_eq!(canonical_hash(&record.payload), Ok(record.hash));
            let array = format!("[{}]", record.payload);
            let again = &split(&array, &any, LONGER).unwrap().records[0];
            assert_eq!((&again.id, &again.payload, again.hash), (&record.id, &record.payload, record.hash));
            let mut shown = Vec::new();
            splice_metadata(&record.payload, METADATA_KEY, "{\"cursor\":1}", &mut shown);
            let shown = String::from_utf8(shown).unwrap();
            assert!(canonical_text(&shown).is_ok());
            assert_eq!(split(&format!("[{shown}]"), &any, LONGER).unwrap().records[0].hash, record.hash);
        }
        // A model accepts fewer records, and does not change them.
        for record in split(text, &order, OPTIONS).unwrap().records {
            let same = batch.records.iter().find(|other| other.index == record.index).unwrap();
            assert_eq!(*same, record);
            assert_eq!(order.check(&record.payload), Ok(()));
        }
    });
}
