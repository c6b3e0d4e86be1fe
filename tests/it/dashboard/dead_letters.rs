//! Dead letters in the dashboard.

use serde_json::json;

use super::{MARKUP, links};
use crate::support::{Bundle, Person, Stage, save};

const LETTERS: &str = "/dashboard/environments/dev/dead-letters";

fn setting_aside() -> Bundle {
    Bundle::guest("hostile").replace("[models.Item]\n", "[models.Item]\non_bad_record = \"set_aside\"\n")
}

/// A stage with two dead letters.
async fn stage() -> Stage {
    let stage = Stage::of(&setting_aside(), json!({ "steps": 0 })).await;
    let items = json!([{ "id": "bad", "count": "seven" }, { "id": "worse", "count": [MARKUP] }]);
    stage.commit(json!([save(&items)])).await;
    stage
}

/// The addresses of the pages of dead letters that a page links to.
fn letters(page: &str) -> Vec<String> {
    links(page, &format!("{LETTERS}/"))
}

#[tokio::test]
async fn dead_letters_are_shown_replayed_and_discarded() {
    let stage = stage().await;
    let ada = Person::administrator(&stage.host, &stage.db).await;
    let list = ada.get(LETTERS).await.expect(200).text();
    assert!(list.contains("/count") && list.contains("expected integer"), "{list}");
    let [bad, worse] = letters(&list).try_into().expect("there are two");
    let page = ada.get(&worse).await.expect(200).text();
    assert!(page.contains("&lt;script&gt;") && !page.contains("<script>alert"), "{page}");

    let refused = ada.submit(&bad, &format!("{bad}/replay"), &[]).await.expect(409);
    assert!(refused.text().contains("still does not match"), "{}", refused.text());
    ada.submit(&bad, &format!("{worse}/discard"), &[]).await.expect(303);
    ada.submit(&bad, &format!("{worse}/discard"), &[]).await.expect(404);
    ada.get(&worse).await.expect(404);
    stage.host.deploy(&setting_aside().replace("count = \"integer?\"", "count = \"json?\"")).await;
    ada.submit(&bad, &format!("{bad}/replay"), &[]).await.expect(303);
    assert_eq!(stage.all(&[("model", "Item")]).await[0]["count"], "seven");
    let empty = ada.get(LETTERS).await.expect(200).text();
    assert!(empty.contains("There is no dead letter"), "{empty}");
}

#[tokio::test]
async fn dead_letters_are_filtered_by_connection_and_model() {
    let stage = stage().await;
    let ada = Person::administrator(&stage.host, &stage.db).await;
    let count =
        async |filter: &str| letters(&ada.get(&format!("{LETTERS}?{filter}")).await.expect(200).text()).len();
    let connection = format!("integration=hostile&connection={}", stage.id);
    for (filter, expected) in [
        ("model=Item&integration=&connection=", 2),
        ("model=Step", 0),
        ("integration=hostile", 2),
        (connection.as_str(), 2),
        ("after=999999999", 0),
    ] {
        assert_eq!(count(filter).await, expected, "{filter}");
    }
    ada.get(&format!("{LETTERS}?integration=gone")).await.expect(404);
    ada.get(&format!("{LETTERS}?connection={}", stage.id)).await.expect(400);
}

#[tokio::test]
async fn a_viewer_cannot_end_a_dead_letter() {
    let stage = stage().await;
    let ada = Person::administrator(&stage.host, &stage.db).await;
    let viewer = ada.invite(&stage.host, "grace@example.com", "viewer").await;
    let list = viewer.get(LETTERS).await.expect(200).text();
    assert!(!list.contains("/discard") && !list.contains("/replay"), "{list}");
    for letter in letters(&list) {
        viewer.submit(LETTERS, &format!("{letter}/replay"), &[]).await.expect(403);
        viewer.submit(LETTERS, &format!("{letter}/discard"), &[]).await.expect(403);
    }
    assert_eq!(letters(&ada.get(LETTERS).await.text()).len(), 2);
}
