//! The operations of the committed OpenAPI document. A test of the crate `api` compares it with the code.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use super::{Answer, Api, Request, Stage, text};

/// The document.
pub static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
    let text = std::fs::read_to_string(super::repository("docs/openapi.json")).expect("the document exists");
    serde_json::from_str(&text).expect("the document is JSON")
});

/// One operation, with the values that its requests need.
#[derive(Debug, Clone, Copy)]
pub struct Operation {
    pub method: &'static str,
    pub path: &'static str,
    definition: &'static Value,
}

/// Values of parameters by name, for [`Operation::request`].
pub type Values = BTreeMap<&'static str, String>;

/// A host, a client with a key that has all scopes, and values with which the requests of all operations reach their
/// handlers.
pub async fn stage() -> (Stage, Api, Values) {
    let stage = Stage::hostile().await;
    let scopes = ["keys", "create", "everything", "--scopes", "environment:*,account:*"];
    let key = stage.host.command(&stage.db, &scopes);
    let all = stage.host.with_key(Some(key.trim()));
    let session = stage.host.post("/connect/sessions", &json!({ "tags": {} })).await.expect(201).json();
    let values = [
        ("Connection-Id", stage.id.clone()),
        ("Provider-Config-Key", "hostile".to_owned()),
        ("connection_id", stage.id.clone()),
        ("provider_config_key", "hostile".to_owned()),
        ("unique_key", "hostile".to_owned()),
        ("key", "hostile".to_owned()),
        ("connect_session_token", text(&session["data"]["token"]).to_owned()),
    ];
    (stage, all, Values::from(values))
}

impl Operation {
    /// All operations.
    pub fn all() -> Vec<Self> {
        let paths = DOCUMENT["paths"].as_object().expect("`paths` is an object");
        let operations = paths.iter().flat_map(|(path, item)| {
            let operations = item.as_object().expect("a path's item is an object").iter();
            operations.map(move |(method, definition)| Self { method, path, definition })
        });
        operations.collect()
    }

    /// Method and path, for messages.
    pub fn name(&self) -> String {
        format!("{} {}", self.method.to_uppercase(), self.path)
    }

    /// The operations that read objects with a secret key. Leaves out the proxy, whose responses come from providers,
    /// and the audit log, which needs a key of the account.
    pub fn reads() -> Vec<Self> {
        let is_read = |one: &Self| one.method == "get" && one.accepts_secret_key();
        let is_left_out = |one: &Self| one.path.starts_with("/proxy") || one.path.starts_with("/audit-log");
        Self::all().into_iter().filter(|one| is_read(one) && !is_left_out(one)).collect()
    }

    /// Whether a secret key authenticates the operation, perhaps besides other credentials.
    pub fn accepts_secret_key(&self) -> bool {
        // The default of the document.
        self.definition["security"].is_null() || self.accepts("secret_key")
    }

    /// Whether the token of a connect session authenticates the operation, in a header or in the query.
    pub fn accepts_session_token(&self) -> bool {
        let is_token = |parameter: &Value| parameter["name"] == "connect_session_token";
        self.accepts("session_token") || self.parameters("query").into_iter().any(is_token)
    }

    /// Whether the operation needs no credentials in a header.
    pub fn is_open(&self) -> bool {
        self.definition["security"] == json!([]) || self.definition["security"] == json!([{}])
    }

    /// The API with the credentials of the operation: a secret key, or the connect session token of the values.
    pub fn api(&self, api: &Api, values: &Values) -> Api {
        let token = &values["connect_session_token"];
        if self.accepts_secret_key() { api.clone() } else { api.with_key(Some(token)) }
    }

    fn accepts(&self, scheme: &str) -> bool {
        let alternatives = self.definition["security"].as_array();
        alternatives.is_some_and(|all| all.iter().any(|one| one.get(scheme).is_some()))
    }

    /// Whether its responses are pages for browsers.
    pub fn answers_with_pages(&self) -> bool {
        self.responses().any(|(_, response)| response.pointer("/content/text~1html").is_some())
    }

    /// Whether its requests have a body, of any content type.
    pub fn has_body(&self) -> bool {
        self.definition.get("requestBody").is_some()
    }

    /// The JSON schema and the example of its body.
    pub fn body(&self) -> Option<(&'static Value, &'static Value)> {
        let content = self.definition.pointer("/requestBody/content/application~1json")?;
        Some((&content["schema"], &content["example"]))
    }

    /// Its parameters in the query, the path or the headers.
    pub fn parameters(&self, place: &str) -> Vec<&'static Value> {
        let parameters = self.definition["parameters"].as_array().into_iter().flatten();
        parameters.filter(|parameter| parameter["in"] == place).collect()
    }

    /// Its responses by status.
    pub fn responses(&self) -> impl Iterator<Item = (&'static String, &'static Value)> {
        let responses = self.definition["responses"].as_object().into_iter().flatten();
        responses.map(|(status, response)| (status, resolve(response)))
    }

    /// The codes of an error status; `None` if the status is not documented.
    pub fn codes(&self, status: u16) -> Option<Vec<&'static str>> {
        let response = resolve(self.definition["responses"].get(status.to_string())?);
        let schema = &response["content"]["application/json"]["schema"];
        let forms = std::iter::once(schema).chain(schema["anyOf"].as_array().into_iter().flatten());
        let codes = forms
            .filter_map(|form| form.pointer("/allOf/1/properties/error/properties/code/enum")?.as_array());
        let codes = codes.flatten();
        Some(codes.filter_map(Value::as_str).collect())
    }

    /// A request with all required parameters, and the example of the body.
    pub fn request(&self, api: &Api, values: &Values) -> Request {
        self.request_with(api, values, &self.required_query(values))
    }

    /// The path and query of a request with all required parameters.
    pub fn target(&self, values: &Values) -> String {
        self.target_with(values, &self.required_query(values))
    }

    fn required_query(&self, values: &Values) -> String {
        let required = self.parameters("query").into_iter().filter(|parameter| parameter["required"] == true);
        let pairs: Vec<_> =
            required.map(|parameter| (name_of(parameter), value_of(parameter, values))).collect();
        let query: Vec<(&str, &str)> = pairs.iter().map(|(name, value)| (*name, value.as_str())).collect();
        super::query(&query)
    }

    fn target_with(&self, values: &Values, query: &str) -> String {
        let mut path = self.path.to_owned();
        for parameter in self.parameters("path") {
            let value = utf8_percent_encode(&value_of(parameter, values), NON_ALPHANUMERIC).to_string();
            path = path.replace(&format!("{{{}}}", name_of(parameter)), &value);
        }
        if query.is_empty() { path } else { format!("{path}?{query}") }
    }

    /// A request with this query.
    pub fn request_with(&self, api: &Api, values: &Values, query: &str) -> Request {
        let mut request = api.request(&self.method.to_uppercase(), &self.target_with(values, query));
        for parameter in
            self.parameters("header").into_iter().filter(|parameter| parameter["required"] == true)
        {
            request = request.header(name_of(parameter), &value_of(parameter, values));
        }
        match self.body() {
            Some((_, example)) => request.json(example),
            None => request,
        }
    }

    /// The operation that a request addresses.
    fn find(method: &str, path: &str) -> Option<Self> {
        let fits = |template: &str| {
            let (mut wanted, mut given) = (template.split('/'), path.split('/'));
            loop {
                match (wanted.next(), given.next()) {
                    (None, None) => return true,
                    // The rest of the path.
                    (Some("{path}"), Some(_)) => return true,
                    (Some(wanted), Some(given)) if wanted == given || wanted.starts_with('{') => {}
                    _ => return false,
                }
            }
        };
        let of_method = |one: &Self| one.method.eq_ignore_ascii_case(method);
        let mut found: Vec<_> =
            Self::all().into_iter().filter(of_method).filter(|one| fits(one.path)).collect();
        found.sort_by_key(|one| one.path.matches('{').count());
        found.into_iter().next()
    }
}

fn name_of(parameter: &'static Value) -> &'static str {
    parameter["name"].as_str().expect("a parameter has a name")
}

fn value_of(parameter: &'static Value, values: &Values) -> String {
    let schema = &parameter["schema"];
    if let Some(value) = values.get(name_of(parameter)) {
        return value.clone();
    }
    let words = schema["enum"].as_array().and_then(|words| words.first()?.as_str());
    match (words, schema["format"].as_str(), schema["type"].as_str()) {
        (Some(word), _, _) => word.to_owned(),
        (_, Some("uuid"), _) => "01978a3e-0001-7c21-9d4e-2b6a1f0c8e11".to_owned(),
        (_, Some("date-time"), _) => "2026-03-01T09:00:00Z".to_owned(),
        (_, _, Some("boolean")) => "false".to_owned(),
        (_, _, Some("integer")) => "1".to_owned(),
        _ => "Any".to_owned(),
    }
}

/// The schema or response that a reference names, or the value itself.
pub fn resolve(schema: &'static Value) -> &'static Value {
    match schema["$ref"].as_str() {
        Some(reference) => {
            DOCUMENT.pointer(reference.trim_start_matches('#')).expect("a reference leads somewhere")
        }
        None => schema,
    }
}

/// What the document does not mention about a response: its status or its code.
pub fn undocumented(method: &str, path: &str, answer: &Answer) -> Option<String> {
    let operation = Operation::find(method, path)?;
    let status = answer.status.as_u16();
    // The response of a provider, of the HTTP library, or of the listener for metrics.
    let is_of_api = answer.header("x-request-id").is_some();
    if !is_of_api || answer.header("syncline-proxied").is_some() || method == "HEAD" {
        return None;
    }
    let name = operation.name();
    let Some(codes) = operation.codes(status) else {
        let body = answer.text();
        return Some(format!("{name} answers {status}, which docs/openapi.json does not mention: {body}"));
    };
    if status < 400 {
        return None;
    }
    let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let code = body["error"]["code"].as_str().filter(|code| !codes.contains(code))?;
    Some(format!("{name} answers {status} `{code}`, which docs/openapi.json does not mention"))
}

/// An object with the members of both.
pub fn with(example: &Value, name: &str, value: Value) -> Value {
    let mut body = if example.is_object() { example.clone() } else { json!({}) };
    body[name] = value;
    body
}
