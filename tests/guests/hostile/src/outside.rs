//! Functions that try what a sandbox must decide about.

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

/// Sends the request that it is given and returns the answer.
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

/// Sends each request, and gives away what was answered: on its standard output, in its log, and in the failure that it
/// ends with. That is the provider's own, where the provider has refused.
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

/// Tries to reach each URL, one after the other and then all at once. Gives what came of each: the code of the
/// failure, or the status of the answer.
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
    /// Of the process; none where there is no WASI.
    process: Option<BTreeMap<String, String>>,
    /// Of the environment in which the integration runs.
    variables: BTreeMap<String, String>,
}

/// Returns every variable that it can see.
#[action]
pub fn read_env() -> Result<Environment> {
    let process = cfg!(target_os = "wasi").then(|| std::env::vars().collect());
    Ok(Environment { process, variables: env::vars().into_iter().collect() })
}

/// Gives away every variable that it can see: in its log, and in the failure that it ends with.
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

/// Gives away the connection's credentials: in its log, and in what it returns or fails with.
#[action]
pub fn tell_credentials(fails: bool) -> Result<Value> {
    let credentials: Value = connection::credentials()?;
    log::info!("they are {credentials}");
    if fails {
        return Err(Error::new("told", format!("they are {credentials}")).with_details(&credentials));
    }
    Ok(credentials)
}

/// Returns what is in a file.
#[action]
pub fn read_file(path: String) -> Result<String> {
    std::fs::read_to_string(path).map_err(refused)
}

/// Connects to an address such as `127.0.0.1:80`.
#[action]
pub fn open_socket(address: String) -> Result {
    TcpStream::connect(address).map(drop).map_err(refused)
}

/// Prints a line on each of its standard outputs.
#[action]
pub fn print(line: String) -> Result {
    println!("{line}");
    eprintln!("{line}");
    Ok(())
}

/// Prints on each of its standard outputs without an end of the line, and waits for the provider.
#[action]
pub fn print_and_wait(text: String) -> Result {
    print!("{text}");
    std::io::stdout().flush()?;
    eprint!("{text}");
    http::get("/wait").send()?;
    Ok(())
}

/// Waits for the provider, and then looks at its connection anew.
#[action]
pub fn wait_and_look() -> Result<Value> {
    http::get("/wait").send()?;
    connection::update_metadata(&json!({ "seen": true }))?;
    connection::metadata()
}

/// Logs with fields that are to be JSON and may be anything.
#[action]
pub fn log_fields(fields: String) -> Result {
    boundary::write(boundary::Level::Info, "with fields", Some(&fields));
    Ok(())
}

/// Hands the host a message that is no text.
#[action]
pub fn bad_utf8_log() -> Result {
    // SAFETY: none. The host is what must notice.
    let message = unsafe { String::from_utf8_unchecked(vec![b'a', 0xff]) };
    boundary::write(boundary::Level::Info, &message, None);
    Ok(())
}

fn refused(error: std::io::Error) -> Error {
    Error::new("refused", error.to_string())
}
