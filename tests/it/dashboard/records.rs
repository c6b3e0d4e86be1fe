//! Records in the dashboard.

use serde_json::{Value, json};

use super::{MARKUP, assert_small, links};
use crate::support::{Person, Stage, delete, save};

const RECORDS: &str = "/dashboard/environments/dev/records";

/// The address of the page with the records of the model `Item`.
async fn items_page(person: &Person) -> String {
    let connections = person.get(RECORDS).await.expect(200).text();
    let connection = links(&connections, &format!("{RECORDS}/connection")).remove(0);
    let models = person.get(&connection).await.expect(200).text();
    links(&models, &format!("{RECORDS}/model")).remove(0)
}

/// The ids of the records of a page, as links contain them.
fn ids(page: &str) -> Vec<String> {
    let records = links(page, &format!("{RECORDS}/record"));
    records.iter().map(|link| link.rsplit_once("&id=").expect("the link has an id").1.to_owned()).collect()
}

#[tokio::test]
async fn records_are_listed_filtered_and_shown() {
    let stage = Stage::hostile().await;
    stage
        .commit(json!([save(&json!([{ "id": "a", "name": MARKUP }, { "id": "b,2" }, { "id": "c" }]))]))
        .await;
    stage.commit(json!([save(&json!([{ "id": "a", "name": MARKUP, "count": 7 }])), delete(&["b,2"])])).await;
    let ada = Person::administrator(&stage.host, &stage.db).await;
    let items = items_page(&ada).await;
    let get = async |more: &str| ada.get(&format!("{items}{more}")).await;
    assert_eq!(ids(&get("").await.expect(200).text()), ["c", "a", "b%2C2"]);
    for (filter, found) in [
        ("&action=deleted", vec!["b%2C2"]),
        ("&action=updated", vec!["a"]),
        ("&ids=a,c", vec!["c", "a"]),
        ("&ids=b,2", vec!["b%2C2"]),
        ("&modified_after=2999-01-01T00:00", vec![]),
        ("&modified_after=2020-01-01T00:00:00Z&action=added", vec!["c"]),
    ] {
        assert_eq!(ids(&get(filter).await.expect(200).text()), found, "{filter}");
    }
    for bad in ["&action=changed", "&modified_after=yesterday", "&after=x"] {
        get(bad).await.expect(400);
    }
    ada.get(&items.replace("variant=base", "variant=a%20b")).await.expect(400);
    get("&ids=%00").await.expect(200);

    let list = get("").await.text();
    let record = links(&list, &format!("{RECORDS}/record")).remove(1);
    let page = ada.get(&record).await.expect(200).text();
    assert!(
        page.contains("updated") && page.contains("&lt;script&gt;") && !page.contains("<script>alert"),
        "{page}"
    );
    let cursor = &stage.all(&[("model", "Item")]).await[1]["_service_metadata"]["cursor"];
    assert!(page.contains(cursor.as_str().expect("a cursor")), "{page}");
    ada.get(&record.replace("id=a", "id=gone")).await.expect(404);
    ada.get(&record.replace("model=Item", "model=Unknown")).await.expect(404);
    ada.get(&record.replace("connection=", "connection=not-")).await.expect(404);
}

#[tokio::test]
async fn records_are_paged_by_cursor() {
    let stage = Stage::hostile().await;
    let batch: Value = (0..60).map(|number| json!({ "id": format!("r{number:02}") })).collect();
    stage.commit(json!([save(&batch)])).await;
    let ada = Person::administrator(&stage.host, &stage.db).await;
    let first = ada.get(&items_page(&ada).await).await.expect(200).text();
    assert!(first.contains(">Next page<") && !first.contains(">First page<"), "{first}");
    let next = links(&first, &format!("{RECORDS}/model")).pop().expect("there is a next page");
    let second = ada.get(&next).await.expect(200).text();
    assert!(second.contains(">First page<") && !second.contains(">Next page<"), "{second}");
    assert_eq!((ids(&first).len(), ids(&second).len()), (50, 10));
    assert_eq!((ids(&first)[0].as_str(), ids(&second)[9].as_str()), ("r00", "r59"));
}

#[tokio::test]
async fn large_payloads_are_cut() {
    let stage = Stage::hostile().await;
    let quotes = "\"<&>".repeat(25_000);
    let batch: Value = (0..50).map(|number| json!({ "id": format!("r{number}"), "name": quotes })).collect();
    for record in batch.as_array().expect("a list") {
        stage.save_raw("Item", &json!([record]).to_string()).await.expect(200);
    }
    let ada = Person::administrator(&stage.host, &stage.db).await;
    let list = ada.get(&items_page(&ada).await).await.expect(200).text();
    assert_eq!(ids(&list).len(), 50);
    assert_small(&list);
    let page = ada.get(&links(&list, &format!("{RECORDS}/record"))[0]).await.expect(200).text();
    assert_small(&page);
    assert!(page.contains("Only a part of it is shown"), "{page}");
}
