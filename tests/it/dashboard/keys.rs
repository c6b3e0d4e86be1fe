//! Secret keys and variables in the dashboard.

use crate::support::{Host, Person, TestDatabase, between};

const KEYS: &str = "/dashboard/environments/dev/keys";
const VARIABLES: &str = "/dashboard/environments/dev/variables";

#[tokio::test]
async fn a_key_is_shown_once_and_can_be_revoked() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let ada = Person::administrator(&host, &db).await;
    let page = ada.submit(KEYS, KEYS, &[("name", "backend"), ("preset", "full")]).await.expect(200).text();
    let key = between(&page, "data-copy=\"sk_", "\"");
    let key = format!("sk_{key}");
    host.with_key(Some(&key)).get("/integrations").await.expect(200);
    let list = ada.get(KEYS).await.expect(200).text();
    assert!(list.contains("backend") && !list.contains(&key), "{list}");
    ada.submit(KEYS, KEYS, &[("name", "backend"), ("preset", "full")]).await.expect(409);
    let row = list.split("<tr>").find(|row| row.contains("<td>backend")).expect("the key is listed");
    let revoke = between(row, "action=\"", "\"");
    ada.submit(KEYS, &revoke, &[]).await.expect(303);
    host.with_key(Some(&key)).get("/integrations").await.expect(401);
    ada.submit(KEYS, &revoke, &[]).await.expect(404);
}

#[tokio::test]
async fn a_key_has_the_chosen_scopes() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let ada = Person::administrator(&host, &db).await;
    let create = async |fields: &[(&str, &str)]| ada.submit(KEYS, KEYS, fields).await;
    let chosen = [("name", "reader"), ("preset", "chosen"), ("scopes", "environment:integrations:list")];
    let page = create(&chosen).await.expect(200).text();
    let key = format!("sk_{}", between(&page, "data-copy=\"sk_", "\""));
    host.with_key(Some(&key)).get("/integrations").await.expect(200);
    host.with_key(Some(&key)).get("/connections").await.expect(403);
    create(&[("name", "none"), ("preset", "chosen")]).await.expect(400);
    create(&[("name", "odd"), ("preset", "chosen"), ("scopes", "environment:x")]).await.expect(400);
    create(&[("name", " "), ("preset", "full")]).await.expect(400);
}

#[tokio::test]
async fn variables_are_set_and_deleted() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let ada = Person::administrator(&host, &db).await;
    let value = "<b>first line</b>\r\nsecond line";
    ada.submit(VARIABLES, VARIABLES, &[("name", "REGION"), ("value", value)]).await.expect(303);
    let page = ada.submit(VARIABLES, &format!("{VARIABLES}/show"), &[]).await.expect(200).text();
    assert!(page.contains("&lt;b&gt;first line&lt;/b&gt;\nsecond line"), "{page}");
    let delete = format!("{VARIABLES}/REGION/delete");
    ada.submit(VARIABLES, &delete, &[]).await.expect(303);
    ada.submit(VARIABLES, &delete, &[]).await.expect(404);
    ada.submit(VARIABLES, VARIABLES, &[("name", "not a name"), ("value", "x")]).await.expect(400);
}
