//! Every combination of the parameters of `GET /records`, with records of every history.

use serde_json::{Value, json};

use crate::support::{METADATA_KEY, Stage, cursor_of, delete, save, text, without_metadata};

/// The properties of a record that decide whether a request returns it.
#[derive(Debug, Clone)]
struct Expected {
    id: &'static str,
    action: &'static str,
    name: String,
    is_pruned: bool,
    /// Taken from the record itself, after checking the order.
    modified_at: String,
    cursor: String,
}

/// Applies the operations independently, without a database.
#[derive(Default)]
struct Model {
    /// In the order of their last change.
    records: Vec<Expected>,
}

impl Model {
    fn save(&mut self, id: &'static str, name: &str) {
        let old = self.take(id);
        let action = match old.as_ref().map(|old| old.action) {
            None | Some("DELETED") => "ADDED",
            Some(_) => "UPDATED",
        };
        self.records.push(Expected {
            id,
            action,
            name: name.to_owned(),
            is_pruned: false,
            modified_at: String::new(),
            cursor: String::new(),
        });
    }

    fn delete(&mut self, id: &'static str) {
        if let Some(old) = self.take(id) {
            self.records.push(Expected { action: "DELETED", ..old });
        }
    }

    fn take(&mut self, id: &str) -> Option<Expected> {
        let index = self.records.iter().position(|record| record.id == id)?;
        Some(self.records.remove(index))
    }

    fn prune_until(&mut self, id: &str) {
        let index = self.records.iter().position(|record| record.id == id).expect("it exists");
        self.records[..=index].iter_mut().for_each(|record| record.is_pruned = true);
    }
}

struct Scene {
    stage: Stage,
    model: Model,
}

impl Scene {
    async fn save(&mut self, ids: &[&'static str], name: &str) {
        let items: Value = ids.iter().map(|id| json!({ "id": id, "name": name })).collect();
        self.stage.commit(json!([save(&items)])).await;
        ids.iter().for_each(|id| self.model.save(id, name));
    }

    async fn delete(&mut self, ids: &[&'static str]) {
        self.stage.commit(json!([delete(ids)])).await;
        ids.iter().for_each(|id| self.model.delete(id));
    }

    async fn prune_until(&mut self, id: &str) {
        let records = self.stage.all(&[("model", "Item")]).await;
        let record = records.iter().find(|record| record["id"] == id).expect("it exists");
        let body = json!({ "model": "Item", "until_cursor": cursor_of(record) });
        self.stage.prune(&body).await.expect(200);
        self.model.prune_until(id);
    }

    /// Compares all records once, and takes their times and cursors.
    async fn settle(&mut self) {
        let records = self.stage.all(&[("model", "Item")]).await;
        assert_eq!(records.len(), self.model.records.len());
        for (record, expected) in records.iter().zip(&mut self.model.records) {
            let metadata = &record[METADATA_KEY];
            assert_eq!(
                (&record["id"], &metadata["last_action"]),
                (&json!(expected.id), &json!(expected.action))
            );
            assert_eq!(metadata["deleted_at"].is_string(), expected.action == "DELETED", "{record}");
            assert_eq!(metadata["pruned_at"].is_string(), expected.is_pruned, "{record}");
            let content = if expected.is_pruned {
                json!({ "id": expected.id })
            } else {
                json!({ "id": expected.id, "name": expected.name })
            };
            assert_eq!(without_metadata(record.clone()), content);
            expected.modified_at = text(&metadata["last_modified_at"]).to_owned();
            expected.cursor = cursor_of(record).to_owned();
        }
        assert!(self.model.records.iter().map(|record| &record.modified_at).is_sorted());
    }
}

#[tokio::test]
async fn every_filter_combination_matches_an_independent_model() {
    let mut scene = Scene { stage: Stage::hostile().await, model: Model::default() };
    // The cache is emptied, and one of the two records is saved again.
    scene.stage.commit(json!([save(&json!([{ "id": "emptied" }, { "id": "emptied-added" }]))])).await;
    scene.stage.set_metadata(json!({ "steps": 0, "commits": [] })).await;
    scene.stage.run_with("commit-raw", json!({ "reset": true, "emptyCache": true })).await;

    scene.save(&["pruned", "pruned-updated", "deleted-pruned"], "first").await;
    scene.delete(&["deleted-pruned"]).await;
    scene.prune_until("deleted-pruned").await;
    scene.save(&["pruned-updated"], "second").await;
    let many =
        ["added", "updated", "deleted", "updated-deleted", "undeleted", "undeleted-updated", "emptied-added"];
    scene.save(&many, "first").await;
    scene.save(&["updated", "updated-deleted"], "second").await;
    scene.delete(&["deleted", "updated-deleted", "undeleted", "undeleted-updated"]).await;
    scene.save(&["undeleted"], "first").await;
    scene.save(&["undeleted-updated"], "first").await;
    scene.save(&["undeleted-updated"], "second").await;
    scene.settle().await;

    let all = scene.model.records.clone();
    let filters = [
        None,
        Some("added"),
        Some("updated"),
        Some("deleted"),
        Some("added,updated"),
        Some("added,deleted"),
        Some("updated,deleted"),
        Some("added,updated,deleted"),
    ];
    let ids: [&[&str]; 4] = [
        &[],
        &["undeleted", "pruned", "nobody", "emptied"],
        &["updated-deleted", "added", "undeleted-updated", "deleted-pruned", "added"],
        &["nobody"],
    ];
    let middle = &all[all.len() / 2];
    let a_moment_later = |time: &str| {
        let time = chrono::DateTime::parse_from_rfc3339(time).expect("it is a time");
        (time + chrono::TimeDelta::milliseconds(1)).to_rfc3339_opts(chrono::SecondsFormat::Millis, true)
    };
    let since = [None, Some(middle.modified_at.clone()), Some(a_moment_later(&middle.modified_at))];
    let cursors = [None, Some(&all[0]), Some(middle), Some(&all[all.len() - 1])];

    let mut asked = 0;
    for filter in filters {
        for ids in ids {
            for since in &since {
                for after in cursors {
                    let wanted: Vec<&str> = all
                        .iter()
                        .filter(|record| {
                            filter.is_none_or(|filter| {
                                filter.split(',').any(|word| word.to_uppercase() == record.action)
                            })
                        })
                        .filter(|record| ids.is_empty() || ids.contains(&record.id))
                        .filter(|record| since.as_ref().is_none_or(|since| record.modified_at >= *since))
                        .skip_while(|record| {
                            let place = |id: &str| all.iter().position(|other| other.id == id);
                            after.is_some_and(|after| place(record.id) <= place(after.id))
                        })
                        .map(|record| record.id)
                        .collect();
                    let mut parameters = vec![("model", "Item")];
                    parameters.extend(filter.map(|filter| ("filter", filter)));
                    parameters.extend(ids.iter().map(|id| ("ids", *id)));
                    parameters.extend(since.as_deref().map(|since| ("modified_after", since)));
                    parameters.extend(after.map(|after| ("cursor", &*after.cursor)));
                    let page = scene.stage.page(&parameters).await;
                    assert_eq!(page.ids(), wanted, "{parameters:?}");
                    assert_eq!(page.next_cursor, None, "{parameters:?}");
                    // The same request with two records per page.
                    parameters.push(("limit", "2"));
                    let first = scene.stage.page(&parameters).await;
                    assert_eq!(first.ids(), wanted[..wanted.len().min(2)], "{parameters:?}");
                    assert_eq!(first.next_cursor.is_some(), wanted.len() > 2, "{parameters:?}");
                    asked += 2;
                }
            }
        }
    }
    eprintln!("{asked} requests agreed with the model");
}
