//! Actions that are run in the dashboard.

use serde_json::json;

use super::{MARKUP, links};
use crate::support::{Bundle, Person, Receiver, Reply, Stage, eventually};

const ACTIONS: &str = "/dashboard/environments/dev/actions";
const FAIL: &str = "/dashboard/environments/dev/actions/hostile/fail";
const ECHO: &str = "/dashboard/environments/dev/actions/minimal/echo";

#[tokio::test]
async fn an_action_runs_with_the_input_of_its_form() {
    let stage = Stage::numbers(0).await;
    let ada = Person::administrator(&stage.host, &stage.db).await;
    let list = ada.get(ACTIONS).await.expect(200).text();
    assert_eq!(links(&list, &format!("{ACTIONS}/")), [ECHO]);
    let form = ada.get(ECHO).await.expect(200).text();
    assert!(
        form.contains("name=\"input/input\"") && form.contains(&format!("value=\"{}\"", stage.id)),
        "{form}"
    );
    let run = async |fields: &[(&str, &str)]| ada.submit(ECHO, &format!("{ECHO}/run"), fields).await;
    let connection = ("connection", stage.id.as_str());
    let input = json!({ "text": MARKUP, "number": 1 }).to_string().replace(":1", ":1.50");
    let page = run(&[connection, ("input/input", &input)]).await.expect(200).text();
    assert!(page.contains("success") && page.contains("1.50") && !page.contains("<script>alert"), "{page}");
    let [run_link] = links(&page, "/dashboard/environments/dev/runs/").try_into().expect("one run");
    let id = run_link.rsplit_once('/').expect("a path").1;
    eventually("the run is stored", async || {
        let answer = stage.host.get(&format!("/runs/{id}")).await;
        (answer.status == 200).then(|| assert_eq!(answer.json()["state"], "success"))
    })
    .await;

    let json_mode = [connection, ("mode", "json"), ("json", "[12345678901234567890123]")];
    let page = run(&json_mode).await.expect(200).text();
    assert!(page.contains("12345678901234567890123"), "{page}");
    let problem = run(&[connection, ("input/input", "{")]).await.expect(400).text();
    assert!(problem.contains("input: is not JSON"), "{problem}");
    run(&[connection]).await.expect(400);
    run(&[("connection", "gone"), ("input/input", "1")]).await.expect(404);
    ada.submit(ECHO, &format!("{ACTIONS}/minimal/gone/run"), &[connection]).await.expect(404);
    ada.get(&format!("{ACTIONS}/gone/echo")).await.expect(404);
}

#[tokio::test]
async fn the_error_of_an_action_is_shown_with_its_details() {
    let stage = Stage::hostile().await;
    let ada = Person::administrator(&stage.host, &stage.db).await;
    let form = ada.get(FAIL).await.expect(200).text();
    for control in ["input/code", "input/message", "input/details"] {
        assert!(form.contains(&format!("name=\"{control}\"")), "{control} in {form}");
    }
    let fields = [
        ("connection", stage.id.as_str()),
        ("input/code", "provider-http-error"),
        ("input/message", MARKUP),
        ("input/details", "{\"status\": 401, \"headers\": {}, \"body\": \"planted response\"}"),
    ];
    let page = ada.submit(FAIL, &format!("{FAIL}/run"), &fields).await.expect(200).text();
    assert!(page.contains("script_http_error") && page.contains("planted response"), "{page}");
    assert!(page.contains("&lt;script&gt;") && !page.contains("<script>alert"), "{page}");
    let missing = ada.submit(FAIL, &format!("{FAIL}/run"), &fields[..2]).await.expect(400).text();
    assert!(missing.contains("message: is required"), "{missing}");
    let json = [fields[0], ("mode", "json"), ("json", "{\"code\": 7, \"message\": \"\"}")];
    let mismatch = ada.submit(FAIL, &format!("{FAIL}/run"), &json).await.expect(400).text();
    assert!(mismatch.contains("at /code: expected string, got integer"), "{mismatch}");
}

#[tokio::test]
async fn markup_in_a_response_of_a_provider_is_escaped() {
    let provider = Receiver::start().await;
    provider.always(Reply::status(403).header("x-note", MARKUP).body(MARKUP));
    let bundle = Bundle::guest("hostile").at_address(&provider.url("/api"));
    let variables = [("SYNCLINE_EGRESS_ALLOW", &*provider.address())];
    let stage = Stage::with(&variables, &bundle, json!({ "steps": 0 })).await;
    let ada = Person::administrator(&stage.host, &stage.db).await;
    let action = format!("{ACTIONS}/hostile/tell-answers");
    let fields = [("connection", stage.id.as_str()), ("input/input", "[\"/refused\"]")];
    let page = ada.submit(&action, &format!("{action}/run"), &fields).await.expect(200).text();
    let (_, response) = page.split_once("The provider's response").expect("the response is shown");
    assert!(response.contains("&lt;script&gt;alert(1)") && response.contains("403"), "{page}");
    assert!(!page.contains("<script>alert") && !page.contains("<img src=x"), "{page}");
    let [run] = links(&page, "/dashboard/environments/dev/runs/").try_into().expect("one run");
    let log = eventually("the log of the run is stored", async || {
        let page = ada.get(&run).await.text();
        page.contains("it said &lt;script&gt;alert(1)").then_some(page)
    })
    .await;
    assert!(!log.contains("<script>alert") && !log.contains("<img src=x"), "{log}");
}

#[tokio::test]
async fn an_action_in_the_background_shows_its_result() {
    let stage = Stage::numbers(0).await;
    let ada = Person::administrator(&stage.host, &stage.db).await;
    let fields =
        [("connection", stage.id.as_str()), ("background", "true"), ("input/input", "\"planted result\"")];
    let queued = ada.submit(ECHO, &format!("{ECHO}/run"), &fields).await.expect(303);
    let job = queued.header("location").expect("the page of the job").to_owned();
    eventually("the job has a result", async || {
        let page = ada.get(&job).await.expect(200).text();
        page.contains("planted result").then_some(())
    })
    .await;
    let unknown = job.rsplit_once('/').expect("a path").0;
    ada.get(&format!("{unknown}/00000000-0000-0000-0000-000000000000")).await.expect(404);
}

#[tokio::test]
async fn a_viewer_cannot_run_actions() {
    let stage = Stage::numbers(0).await;
    let ada = Person::administrator(&stage.host, &stage.db).await;
    let viewer = ada.invite(&stage.host, "grace@example.com", "viewer").await;
    let records = "/dashboard/environments/dev/records";
    let fields = [("connection", stage.id.as_str()), ("input/input", "1")];
    viewer.submit(records, &format!("{ECHO}/run"), &fields).await.expect(403);
    viewer.get(ECHO).await.expect(403);
    viewer.get(ACTIONS).await.expect(403);
}
