//! Properties of the parsers for generated inputs.

use chrono::{DateTime, Utc};
use chrono_tz::Tz;

use super::*;
use crate::bundle::Bundle;
use crate::frequency::Frequency;

const SCHEMA: &str = r#"{"type": "object", "properties": {"id": {"type": "string"}}}"#;
/// The maximum length of a message, in addition to what it quotes of the file.
const MAX_MESSAGE_BYTES: usize = 1_000;

fn schema_files(path: &str) -> io::Result<String> {
    if path.ends_with(".json") { Ok(SCHEMA.to_owned()) } else { Err(io::ErrorKind::NotFound.into()) }
}

#[test]
fn a_configuration_file_is_stored_without_loss_or_refused_with_places() {
    syncline_fuzz::check_text("configuration-files", |text| match parse(FILE_NAME, text, &schema_files) {
        Ok(file) => {
            let stored = serde_json::to_value(&file.config).unwrap();
            assert_eq!(serde_json::from_value::<SyncConfig>(stored).unwrap(), file.config);
            let commented = parse(FILE_NAME, &format!("# before\n{text}\n# after"), &schema_files);
            assert_eq!(commented.unwrap().config, file.config);
        }
        Err(found) => {
            assert!(!found.is_empty());
            for mistake in found.mistakes() {
                assert!(
                    mistake.span.start <= mistake.span.end && mistake.span.end <= text.len(),
                    "{mistake:?}"
                );
                assert!(mistake.message.len() <= 2 * text.len() + MAX_MESSAGE_BYTES, "{mistake:?}");
            }
            assert!(!found.render().is_empty());
            assert!(serde_json::to_value(&found).is_ok());
        }
    });
}

#[test]
fn an_accepted_bundle_is_written_with_the_same_content() {
    syncline_fuzz::check("bundles", |bytes| {
        let Ok(bundle) = Bundle::read(bytes) else { return };
        let texts = bundle.schemas.values().map(String::len).sum::<usize>() + bundle.config.len();
        assert!(texts <= bytes.len());
        assert!(bundle.components.values().all(|component| component.len() <= bytes.len()));
        let written = bundle.write().unwrap();
        assert_eq!(Bundle::read(&written).unwrap(), bundle);
        assert_eq!(Bundle::read(&written).unwrap().write().unwrap(), written);
        drop(bundle.parse_config());
    });
}

#[test]
fn a_frequency_prints_itself_and_is_due_later() {
    let zones = [Tz::UTC, Tz::Europe__Berlin, Tz::Australia__Lord_Howe, Tz::America__St_Johns];
    // One of the times is within an hour that the clocks of Berlin skip, and one is within an hour that they repeat.
    let times = ["2026-03-29T00:59:59Z", "2026-10-25T00:30:00Z", "2028-02-29T23:59:59Z"];
    let times = times.map(|time| time.parse::<DateTime<Utc>>().unwrap());
    syncline_fuzz::check_text("frequencies", |text| match text.parse::<Frequency>() {
        Ok(frequency) => {
            assert_eq!(frequency.to_string().parse(), Ok(frequency.clone()));
            let stored = serde_json::to_string(&frequency).unwrap();
            assert_eq!(serde_json::from_str::<Frequency>(&stored).unwrap(), frequency);
            for (now, zone) in times.iter().flat_map(|now| zones.map(|zone| (*now, zone))) {
                let next = frequency.next_after(now, zone);
                assert!(next > now);
                if let Some(interval) = frequency.interval() {
                    assert_eq!((next - now).to_std().unwrap(), interval);
                }
            }
        }
        Err(error) => assert!(error.to_string().len() <= 2 * text.len() + MAX_MESSAGE_BYTES, "{error}"),
    });
}
