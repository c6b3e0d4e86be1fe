//! Functions that try to reach the outside of the sandbox.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::TcpStream;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use syncline_sdk::bindings::syncline::integration::log as boundary;
use syncline_sdk::{Error, Result, action, connection, env, http, log};

#[derive(Deserialize)]
pub struct Fetch {
    #[serde(default = "get")]
    method: String,
    url: String,
    #[serde(default)]
    headers: Vec<(String, String)>,
    body: Option<String>,
    retries: Option<u8>,
}

fn get() -> String {
    "GET".to_owned()
}

#[derive(Serialize)]
pub struct Fetched {
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
}

/// Sends the request from its input and returns the response.
#[action]
pub fn fetch(fetch: Fetch) -> Result<Fetched> {
    let mut request = http::Request::new(fetch.method, fetch.url);
    for (name, value) in fetch.headers {
        request = request.header(name, value);
    }
    if let Some(body) = fetch.body {
        request = request.body(body);
    }
    if let Some(retries) = fetch.retries {
        request = request.retries(retries);
    }
    let response = request.send()?;
    Ok(Fetched {
        status: response.status(),
        headers: response.headers().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        body: String::from_utf8_lossy(response.bytes()).into_owned(),
    })
}

/// Sends each request and leaks the responses: on its standard output, in its log, and in its failure. If the provider
/// rejects a request, the failure is the provider error itself.
#[action]
pub fn tell_answers(urls: Vec<String>) -> Result {
    let mut told = Vec::new();
    for url in urls {
        let response = http::get(url).retries(0).send()?;
        let body = response.text()?.to_owned();
        println!("{body}");
        log::info!("it said {body}");
        log::write(log::Level::Warn, "it said", &json!({ "body": body }));
        response.error_for_status()?;
        told.push(body);
    }
    Err(Error::new("told", told.join(", ")).with_details(&told))
}

/// Tries to reach each URL, first one after the other and then all at once. Returns for each URL the failure code or
/// the status of the response.
#[action]
pub fn reach(urls: Vec<String>) -> Result<Vec<[String; 2]>> {
    let outcome = |answer: Result<http::Response>| match answer {
        Ok(response) => response.status().to_string(),
        Err(error) => error.code().to_owned(),
    };
    let request = |url: &String| http::get(url).retries(0);
    let alone: Vec<String> = urls.iter().map(|url| outcome(request(url).send())).collect();
    let at_once = http::send_all(urls.iter().map(request)).into_iter().map(outcome);
    Ok(alone.into_iter().zip(at_once).map(<[String; 2]>::from).collect())
}

#[derive(Serialize)]
pub struct Environment {
    /// Variables of the process. `None` without WASI.
    process: Option<BTreeMap<String, String>>,
    /// Variables of the environment in which the integration runs.
    variables: BTreeMap<String, String>,
}

/// Returns every variable that the guest can see.
#[action]
pub fn read_env() -> Result<Environment> {
    let process = cfg!(target_os = "wasi").then(|| std::env::vars().collect());
    Ok(Environment { process, variables: env::vars().into_iter().collect() })
}

/// Leaks every variable that the guest can see: in its log and in its failure.
#[action]
pub fn tell_env() -> Result {
    let mut told = Vec::new();
    for (_, value) in env::vars() {
        log::info!("it is {value}");
        println!("it is {value}");
        told.push(format!("it is {value}"));
    }
    Err(Error::new("told", told.join(", ")).with_details(&told))
}

/// Leaks the connection's credentials: in its log and in its result or failure.
#[action]
pub fn tell_credentials(fails: bool) -> Result<Value> {
    let credentials: Value = connection::credentials()?;
    log::info!("they are {credentials}");
    if fails {
        return Err(Error::new("told", format!("they are {credentials}")).with_details(&credentials));
    }
    Ok(credentials)
}

/// Returns the content of a file.
#[action]
pub fn read_file(path: String) -> Result<String> {
    std::fs::read_to_string(path).map_err(refused)
}

/// Connects to an address such as `127.0.0.1:80`.
#[action]
pub fn open_socket(address: String) -> Result {
    TcpStream::connect(address).map(drop).map_err(refused)
}

/// Prints a line to standard output and to standard error.
#[action]
pub fn print(line: String) -> Result {
    println!("{line}");
    eprintln!("{line}");
    Ok(())
}

/// Prints to standard output and standard error without a line break, and waits for the provider.
#[action]
pub fn print_and_wait(text: String) -> Result {
    print!("{text}");
    std::io::stdout().flush()?;
    eprint!("{text}");
    http::get("/wait").send()?;
    Ok(())
}

/// Waits for the provider, and then reads its connection again.
#[action]
pub fn wait_and_look() -> Result<Value> {
    http::get("/wait").send()?;
    connection::update_metadata(&json!({ "seen": true }))?;
    connection::metadata()
}

/// Logs with fields that should be JSON but can be any text.
#[action]
pub fn log_fields(fields: String) -> Result {
    boundary::write(boundary::Level::Info, "with fields", Some(&fields));
    Ok(())
}

/// Logs a message that is not UTF-8.
#[action]
pub fn bad_utf8_log() -> Result {
    // SAFETY: none. The host must detect the invalid text.
    let message = unsafe { String::from_utf8_unchecked(vec![b'a', 0xff]) };
    boundary::write(boundary::Level::Info, &message, None);
    Ok(())
}

fn refused(error: std::io::Error) -> Error {
    Error::new("refused", error.to_string())
}
