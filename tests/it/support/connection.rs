//! One connection, as a client's backend uses it.

use serde_json::{Value, json};

use super::client::query;
use super::{Answer, Api, Request, eventually, ids_of};

pub struct Connection {
    api: Api,
    pub integration: String,
    pub id: String,
    credentials: Value,
}

/// A page of records.
#[derive(Debug)]
pub struct Page {
    pub records: Vec<Value>,
    pub next_cursor: Option<String>,
}

impl Connection {
    pub async fn import(api: &Api, integration: &str, id: &str, credentials: Value, metadata: Value) -> Self {
        let connection =
            Self { api: api.clone(), integration: integration.to_owned(), id: id.to_owned(), credentials };
        connection.set_metadata(metadata).await;
        connection
    }

    /// A connection that exists already, or that is imported later under the id of [`with_id`](Self::with_id).
    pub fn unknown(api: &Api, integration: &str) -> Self {
        Self {
            api: api.clone(),
            integration: integration.to_owned(),
            id: String::new(),
            credentials: Value::Null,
        }
    }

    /// The same connection through another host, or with another key.
    pub fn through(&self, api: &Api) -> Self {
        let Self { integration, id, credentials, .. } = self;
        Self {
            api: api.clone(),
            integration: integration.clone(),
            id: id.clone(),
            credentials: credentials.clone(),
        }
    }

    /// The connection with another id of the same integration.
    pub fn with_id(&self, id: &str) -> Self {
        Self { id: id.to_owned(), ..self.through(&self.api) }
    }

    /// The connection with the same id of another integration, or of this one under another key.
    pub fn to(&self, integration: &str) -> Self {
        Self { integration: integration.to_owned(), ..self.through(&self.api) }
    }

    /// Replaces the metadata, which controls what the test guests do.
    pub async fn set_metadata(&self, metadata: Value) {
        let body = json!({
            "connection_id": self.id, "provider_config_key": self.integration,
            "credentials": self.credentials, "metadata": metadata,
        });
        self.api.post("/connections", &body).await.expect(201);
    }

    /// Changes these members of the metadata and keeps the others.
    pub async fn merge_metadata(&self, metadata: Value) {
        let body = json!({ "connection_id": self.id, "provider_config_key": self.integration, "metadata": metadata });
        self.api.patch("/connections/metadata", &body).await.expect(200);
    }

    /// A request with the headers that identify this connection.
    pub fn request(&self, method: &str, path: &str) -> Request {
        self.api
            .request(method, path)
            .header("Connection-Id", &self.id)
            .header("Provider-Config-Key", &self.integration)
    }

    pub async fn get_records(&self, parameters: &[(&str, &str)]) -> Answer {
        self.request("GET", &format!("/records?{}", query(parameters))).send().await
    }

    /// One page of records.
    pub async fn page(&self, parameters: &[(&str, &str)]) -> Page {
        Page::read(&self.get_records(parameters).await.expect(200))
    }

    /// All records, page by page.
    pub async fn all(&self, parameters: &[(&str, &str)]) -> Vec<Value> {
        let mut page = self.page(parameters).await;
        let mut records = page.records;
        while let Some(cursor) = page.next_cursor.take() {
            page = self.page(&[parameters, &[("cursor", &*cursor)]].concat()).await;
            records.append(&mut page.records);
        }
        records
    }

    pub async fn prune(&self, body: &Value) -> Answer {
        self.request("PATCH", "/records/prune").json(body).send().await
    }

    pub async fn action(&self, name: &str, input: &Value) -> Answer {
        let body = json!({ "action_name": name, "input": input });
        self.request("POST", "/action/trigger").json(&body).send().await
    }

    /// Triggers an action with additional headers.
    pub async fn action_with(&self, headers: &[(&str, &str)], name: &str, input: &Value) -> Answer {
        let body = json!({ "action_name": name, "input": input });
        let request = self.request("POST", "/action/trigger").json(&body);
        headers.iter().fold(request, |request, (name, value)| request.header(name, value)).send().await
    }

    /// Triggers an asynchronous action. Returns the path of its result.
    pub async fn trigger_async(&self, name: &str, input: &Value) -> String {
        let accepted = self.action_with(&[("X-Async", "true")], name, input).await.expect(202);
        accepted.json()["statusUrl"].as_str().expect("a path").to_owned()
    }

    /// Waits for the result of an asynchronous action.
    pub async fn result(&self, path: &str) -> Answer {
        eventually("the action has a result", async || {
            let answer = self.api.get(path).await;
            let is_unfinished =
                answer.status == 404 && answer.refusal() == (404, "action_not_finished".to_owned());
            (!is_unfinished).then_some(answer)
        })
        .await
    }

    /// Sends `trigger`, `start` or `pause` for one sync.
    pub async fn control(&self, command: &str, sync: &str) -> Answer {
        let body =
            json!({ "provider_config_key": self.integration, "connection_id": self.id, "syncs": [sync] });
        self.api.post(&format!("/sync/{command}"), &body).await
    }

    pub async fn trigger(&self, sync: &str) {
        self.control("trigger", sync).await.expect(200);
    }

    /// Status objects of syncs: names separated by commas, or `*`.
    pub async fn statuses(&self, syncs: &str) -> Vec<Value> {
        let parameters =
            [("provider_config_key", &*self.integration), ("connection_id", &*self.id), ("syncs", syncs)];
        let answer = self.api.get(&format!("/sync/status?{}", query(&parameters))).await.expect(200).json();
        answer["syncs"].as_array().expect("`syncs` is a list").clone()
    }

    pub async fn status(&self, sync: &str) -> Value {
        let mut statuses = self.statuses(sync).await;
        assert_eq!(statuses.len(), 1, "status of `{sync}`: {statuses:?}");
        statuses.remove(0)
    }

    /// Waits until every sync has run and none is running.
    pub async fn wait_until_idle(&self) {
        eventually("every sync has run", async || {
            let statuses = self.statuses("*").await;
            statuses.iter().all(|status| finish_of(status).is_some()).then_some(())
        })
        .await;
    }

    /// Triggers one run of an idle sync and waits for its end. Returns the status afterwards.
    pub async fn run(&self, sync: &str) -> Value {
        self.run_with(sync, json!({})).await
    }

    /// Like [`run`](Self::run), with `opts`.
    pub async fn run_with(&self, sync: &str, opts: Value) -> Value {
        let before = finish_of(&self.status(sync).await);
        let body = json!({
            "provider_config_key": self.integration, "connection_id": self.id, "syncs": [sync], "opts": opts,
        });
        self.api.post("/sync/trigger", &body).await.expect(200);
        self.wait_for_finish_after(sync, before.as_deref()).await
    }

    /// Waits until a run has ended at another time than `before`. Returns the status afterwards.
    pub async fn wait_for_finish_after(&self, sync: &str, before: Option<&str>) -> Value {
        eventually(&format!("a run of `{sync}` has ended"), async || {
            let status = self.status(sync).await;
            let finish = finish_of(&status);
            (finish.is_some() && finish.as_deref() != before).then_some(status)
        })
        .await
    }

    /// Waits until a run is in progress.
    pub async fn wait_until_running(&self, sync: &str) {
        eventually(&format!("`{sync}` is running"), async || {
            (self.status(sync).await["status"] == "RUNNING").then_some(())
        })
        .await;
    }

    /// Makes these changes in one commit, with a run of the hostile guest's sync `commit-raw`.
    pub async fn commit(&self, changes: Value) -> Value {
        self.set_metadata(json!({ "steps": 0, "commits": [{ "changes": changes }] })).await;
        let status = self.run("commit-raw").await;
        assert_eq!(status["status"], "SUCCESS", "{status}");
        status
    }

    /// Saves a batch with the hostile guest. `items` need not be valid JSON. Returns the counts or the error.
    pub async fn save_raw(&self, model: &str, items: &str) -> Answer {
        self.action("save-raw", &json!({ "model": model, "items": items })).await
    }
}

impl Page {
    pub fn read(answer: &Answer) -> Self {
        let body = answer.json();
        let keys: Vec<_> = body.as_object().into_iter().flatten().map(|(key, _)| &**key).collect();
        assert_eq!(keys, ["next_cursor", "records"], "{body}");
        Self {
            records: body["records"].as_array().expect("`records` is a list").clone(),
            next_cursor: body["next_cursor"].as_str().map(str::to_owned),
        }
    }

    pub fn ids(&self) -> Vec<&str> {
        ids_of(&self.records)
    }
}

/// When the last run ended, or `None` while one is in progress.
pub fn finish_of(status: &Value) -> Option<String> {
    if status["status"] == "RUNNING" {
        return None;
    }
    status["finishedAt"].as_str().map(str::to_owned)
}
