//! A browser without scripts that is signed in to the dashboard.

use super::{Answer, Host, TestDatabase, query};

/// The password of every account of the tests.
pub const PASSWORD: &str = "planted-password-of-the-tests";

/// A person at the dashboard.
#[derive(Debug)]
pub struct Person {
    http: reqwest::Client,
    base_url: String,
    cookie: String,
}

impl Person {
    /// Creates an administrator with the command line and signs in.
    pub async fn administrator(host: &Host, db: &TestDatabase) -> Self {
        let link = host.command(db, &["admin", "create", "ada@example.com", "--name", "Ada"]);
        Self::choose_password(host, link.trim()).await
    }

    /// Invites a colleague with this role, who signs in.
    pub async fn invite(&self, host: &Host, email: &str, role: &str) -> Self {
        let fields = [("name", "Colleague"), ("email", email), ("role", role)];
        let page =
            self.submit("/dashboard/accounts", "/dashboard/accounts", &fields).await.expect(200).text();
        Self::choose_password(host, &between(&page, "data-copy=\"", "\"").replace("&amp;", "&")).await
    }

    /// Opens a one-time link and chooses the password.
    pub async fn choose_password(host: &Host, link: &str) -> Self {
        let token = link.rsplit_once("token=").expect("the link has a token").1;
        let person = Self::signed_out(host);
        person.get(&format!("/dashboard/link?token={token}")).await.expect(200);
        let answer = person.post("/dashboard/link", &[("token", token), ("new_password", PASSWORD)]).await;
        person.with_session(&answer.expect(303))
    }

    pub fn signed_out(host: &Host) -> Self {
        let http = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none());
        Self {
            http: http.build().expect("an HTTP client can be built"),
            base_url: host.base_url().to_owned(),
            cookie: String::new(),
        }
    }

    /// Signs in with an address and a password.
    pub async fn sign_in(host: &Host, email: &str, password: &str) -> Result<Self, Answer> {
        let person = Self::signed_out(host);
        let answer = person.post("/dashboard/sign-in", &[("email", email), ("password", password)]).await;
        if answer.status.is_redirection() { Ok(person.with_session(&answer)) } else { Err(answer) }
    }

    fn with_session(self, answer: &Answer) -> Self {
        let cookies = answer.headers.get_all("set-cookie").into_iter();
        let mut cookies = cookies.map(|cookie| cookie.to_str().expect("a cookie is text"));
        let session =
            cookies.find(|cookie| cookie.starts_with("syncline_session=")).expect("a session began");
        Self { cookie: session.split(';').next().unwrap_or_default().to_owned(), ..self }
    }

    /// The value of the `Cookie` header.
    pub fn cookie(&self) -> &str {
        &self.cookie
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(self.http.get(format!("{}{path}", self.base_url))).await
    }

    /// Posts fields without the token of the session.
    pub async fn post(&self, path: &str, fields: &[(&str, &str)]) -> Answer {
        let request = self.http.post(format!("{}{path}", self.base_url)).body(query(fields));
        self.send(request.header("content-type", "application/x-www-form-urlencoded")).await
    }

    /// Submits a form of `page` to `path`, with the token of the session.
    pub async fn submit(&self, page: &str, path: &str, fields: &[(&str, &str)]) -> Answer {
        let page = self.get(page).await.expect(200).text();
        let token = between(&page, "name=\"form_token\" value=\"", "\"");
        self.post(path, &[fields, &[("form_token", token.as_str())]].concat()).await
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> Answer {
        let (client, request) = request.header("cookie", &self.cookie).build_split();
        let request = request.expect("a test builds a valid request");
        let name = format!("{} {}", request.method(), request.url());
        let response = client.execute(request).await.unwrap_or_else(|error| panic!("{name}: {error:?}"));
        let (status, headers) = (response.status(), response.headers().clone());
        let body = response.bytes().await.unwrap_or_else(|error| panic!("{name}: {error:?}"));
        Answer { request: name, status, headers, body }
    }
}

/// The text between two others.
#[track_caller]
pub fn between(text: &str, before: &str, after: &str) -> String {
    let rest = text.split_once(before).unwrap_or_else(|| panic!("no {before:?} in {text}")).1;
    rest.split_once(after).unwrap_or_else(|| panic!("no {after:?} in {rest}")).0.to_owned()
}
