//! Numbers keep their value between the provider's response and the record.

use proptest::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::json;
use syncline_sdk::testing::Host;
use syncline_sdk::{Result, Writer, connection, http, records};

#[derive(Serialize, Deserialize)]
struct Item {
    id: String,
    value: f64,
}

/// Fetches an item from the provider and saves it.
fn sync() -> Result {
    let item: Item = http::get("/item").send_ok()?.json()?;
    let mut items = Writer::new("Item");
    items.save(&item)?;
    items.finish()?;
    Ok(())
}

/// Returns the value that is saved when the provider sends this number.
fn saved(literal: &str) -> f64 {
    let host = Host::new();
    let body = format!(r#"{{"id": "a", "value": {literal}}}"#);
    host.answer_with("GET /item", 200, &[], body.as_bytes());
    sync().expect("the item is saved");
    let stored: Vec<Option<Item>> = records::get("Item", &["a"]).expect("records can be read");
    stored.into_iter().flatten().next().expect("the item is stored").value
}

fn finite() -> impl Strategy<Value = f64> {
    any::<u64>()
        .prop_map(f64::from_bits)
        .prop_filter("JSON has only finite numbers", |value| value.is_finite())
}

#[test]
fn a_float_of_17_digits_is_saved_as_the_provider_sent_it() {
    for literal in ["0.09815842978200795", "0.30000000000000004", "1.7976931348623157e308", "5e-324", "-0.0"]
    {
        let sent: f64 = literal.parse().unwrap();
        assert_eq!(saved(literal).to_bits(), sent.to_bits(), "{literal}");
    }
}

#[test]
fn a_float_in_metadata_is_read_as_it_was_set() {
    let host = Host::new();
    host.set_metadata(json!({ "id": "a", "value": 0.09815842978200795 }));
    let item: Item = connection::metadata().unwrap();
    assert_eq!(item.value.to_bits(), 0.09815842978200795_f64.to_bits());
}

proptest! {
    #[test]
    fn every_float_is_saved_as_the_provider_sent_it(sent in finite()) {
        // `{:?}` writes the fewest digits that identify the number, and `{:.20e}` writes more than needed.
        for literal in [format!("{sent:?}"), format!("{sent:.20e}")] {
            prop_assert_eq!(saved(&literal).to_bits(), sent.to_bits(), "{}", literal);
        }
    }
}
