//! A writer saves every change once, in order, in batches, with the checkpoint that belongs to it.

use serde::{Deserialize, Serialize};
use serde_json::json;
use syncline_sdk::log::Level;
use syncline_sdk::testing::Host;
use syncline_sdk::{Writer, checkpoint, records};

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Item {
    id: u32,
    name: String,
}

fn item(id: u32) -> Item {
    Item { id, name: "\"é\u{1f600}\n".to_owned() }
}

fn batch_sizes(host: &Host) -> Vec<usize> {
    host.commits().iter().map(|commit| commit.changes.len()).collect()
}

#[test]
fn a_batch_ends_at_the_maximum_number_of_records() {
    let host = Host::new();
    let mut writer = Writer::new("Item").batch_records(2);
    writer.save_all((0..5).map(item)).unwrap();
    assert_eq!(batch_sizes(&host), [2, 2]);
    let counts = writer.finish().unwrap();
    assert_eq!(batch_sizes(&host), [2, 2, 1]);
    assert_eq!((counts.added, counts.unchanged), (5, 0));
    assert_eq!(host.records("Item").len(), 5);
}

#[test]
fn a_batch_ends_at_a_megabyte() {
    let host = Host::new();
    let mut writer = Writer::new("Item");
    for id in 0..3 {
        writer.save(&Item { id, name: "x".repeat(400_000) }).unwrap();
    }
    assert_eq!(batch_sizes(&host), [3]);
    writer.finish().unwrap();
    assert_eq!(batch_sizes(&host), [3]);
}

#[test]
fn a_checkpoint_is_saved_with_the_records_before_it() {
    let host = Host::new();
    let mut writer = Writer::new("Item").batch_records(2);
    writer.save(&item(1)).unwrap();
    writer.cursor("after 1");
    writer.save(&item(2)).unwrap();
    writer.cursor("after 2");
    let checkpoints: Vec<_> = host.commits().into_iter().map(|commit| commit.checkpoint).collect();
    assert_eq!(checkpoints, [Some(json!({ "cursor": "after 1" }))]);
    writer.finish().unwrap();
    assert_eq!(host.commits().len(), 2, "a checkpoint without records is saved, too");
    assert_eq!(checkpoint::cursor().unwrap().as_deref(), Some("after 2"));
}

#[test]
fn a_typed_checkpoint_is_read_back_and_null_clears_it() {
    let host = Host::new();
    assert_eq!(checkpoint::get::<Item>().unwrap(), None);
    let mut writer = Writer::new("Item");
    writer.checkpoint(&item(7)).unwrap();
    writer.flush().unwrap();
    assert_eq!(checkpoint::get().unwrap(), Some(item(7)));
    writer.checkpoint(&()).unwrap();
    writer.finish().unwrap();
    assert_eq!(host.checkpoint(), None);
    host.set_checkpoint(json!({ "other": true }));
    assert_eq!(checkpoint::get::<Item>().unwrap_err().code(), "invalid-checkpoint");
}

#[test]
fn changes_keep_their_order_across_kinds() {
    let host = Host::new();
    host.keep("Item", json!({ "id": 1, "name": "one", "tags": { "a": 1 } }));
    let mut writer = Writer::new("Item");
    writer.update(&json!({ "id": 1, "tags": { "b": 2 } })).unwrap();
    writer.save(&item(2)).unwrap();
    writer.delete("2").unwrap();
    writer.delete("3").unwrap();
    writer.save(&item(3)).unwrap();
    let counts = writer.finish().unwrap();
    assert_eq!((counts.added, counts.updated, counts.deleted), (2, 1, 1));
    assert_eq!(host.commits().len(), 1);
    let expected = [json!({ "id": 1, "name": "one", "tags": { "a": 1, "b": 2 } }), json!(item(3))];
    assert_eq!(host.records("Item"), expected);
    assert_eq!(records::get("Item", &["3", "2"]).unwrap(), [Some(item(3)), None]);
}

#[test]
fn a_record_that_cannot_be_serialized_does_not_damage_others() {
    let host = Host::new();
    let mut writer = Writer::new("Item");
    writer.save(&item(1)).unwrap();
    let no_text_keys = std::collections::BTreeMap::from([(vec![1], 2)]);
    assert_eq!(writer.save(&no_text_keys).unwrap_err().code(), "invalid-records");
    writer.save(&item(2)).unwrap();
    writer.finish().unwrap();
    assert_eq!(host.records("Item"), [json!(item(1)), json!(item(2))]);
}

#[test]
fn a_refused_batch_is_an_error_and_changes_nothing() {
    let host = Host::new();
    let mut writer = Writer::new("Item");
    writer.save(&item(1)).unwrap();
    writer.save(&json!({ "name": "no id" })).unwrap();
    assert_eq!(writer.finish().unwrap_err().code(), "invalid-records");
    assert!(host.records("Item").is_empty() && host.commits().is_empty());
}

#[test]
fn a_dropped_writer_logs_unsaved_changes() {
    let host = Host::new();
    let mut writer = Writer::new("Item");
    writer.save(&item(1)).unwrap();
    drop(writer);
    let log = host.log();
    assert_eq!(log.len(), 1);
    assert_eq!(log[0].level, Level::Warn);
    assert!(log[0].message.starts_with("1 change was not saved to `Item`"), "{}", log[0].message);
}

#[test]
fn a_dropped_writer_logs_an_unsaved_checkpoint() {
    let host = Host::new();
    let mut writer = Writer::new("Item");
    writer.save(&item(1)).unwrap();
    writer.flush().unwrap();
    writer.cursor("after 1");
    drop(writer);
    let log = host.log();
    assert_eq!(log.len(), 1);
    assert!(log[0].message.starts_with("the checkpoint was not saved to `Item`"), "{}", log[0].message);
}
