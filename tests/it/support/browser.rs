//! A minimal browser with redirects and cookies. It runs no scripts.

use std::collections::BTreeMap;

use url::Url;

use super::Answer;
use super::client::query;

const MAX_REDIRECTS: usize = 20;

pub struct Browser {
    http: reqwest::Client,
    /// By host, path and name. Cookies do not distinguish ports.
    cookies: BTreeMap<(String, String, String), String>,
}

/// A page that was reached.
pub struct Visited {
    pub url: Url,
    pub answer: Answer,
    /// Every URL on the way, ending with the page's own.
    pub visited: Vec<Url>,
}

impl Browser {
    pub fn new() -> Self {
        let http = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none());
        Self { http: http.build().expect("an HTTP client can be built"), cookies: BTreeMap::new() }
    }

    /// Visits a URL and follows redirects.
    pub async fn visit(&mut self, url: &str) -> Visited {
        self.follow("GET", url, None, |_| true).await
    }

    /// Visits a URL and follows redirects, but not to a URL with this prefix.
    pub async fn visit_until(&mut self, url: &str, stop_before: &str) -> Visited {
        self.follow("GET", url, None, |next| !next.as_str().starts_with(stop_before)).await
    }

    /// Submits a form and follows redirects.
    pub async fn submit(&mut self, url: &Url, fields: &[(&str, &str)]) -> Visited {
        self.follow("POST", url.as_str(), Some(query(fields)), |_| true).await
    }

    /// Submits a form and follows redirects, but not to a URL with this prefix.
    pub async fn submit_until(&mut self, url: &Url, fields: &[(&str, &str)], stop_before: &str) -> Visited {
        let goes_on = |next: &Url| !next.as_str().starts_with(stop_before);
        self.follow("POST", url.as_str(), Some(query(fields)), goes_on).await
    }

    async fn follow(
        &mut self,
        method: &str,
        url: &str,
        form: Option<String>,
        goes_on: impl Fn(&Url) -> bool,
    ) -> Visited {
        let mut url = Url::parse(url).expect("the test specifies a valid URL");
        let (mut method, mut form, mut visited) = (method, form, Vec::new());
        for _ in 0..MAX_REDIRECTS {
            visited.push(url.clone());
            let answer = self.exchange(method, &url, form.take()).await;
            let location = answer.header("location").map(str::to_owned);
            match location.filter(|_| answer.status.is_redirection()) {
                Some(location) => {
                    let next = url.join(&location).expect("a redirect has an address");
                    if !goes_on(&next) {
                        return Visited { url: next, answer, visited };
                    }
                    (url, method) = (next, "GET");
                }
                None => return Visited { url, answer, visited },
            }
        }
        panic!("more than {} redirects: {visited:?}", visited.len());
    }

    async fn exchange(&mut self, method: &str, url: &Url, form: Option<String>) -> Answer {
        let mut request = self
            .http
            .request(method.parse().expect("a real method"), url.clone())
            .header("Accept", "text/html,application/xhtml+xml,*/*;q=0.8")
            .header("Cookie", self.cookies_for(url));
        if let Some(form) = form {
            request = request.header("Content-Type", "application/x-www-form-urlencoded").body(form);
        }
        let response = match request.send().await {
            Ok(response) => response,
            Err(error) => panic!("{method} {url} got no response: {error:?}"),
        };
        for cookie in response.headers().get_all("set-cookie") {
            self.store_cookie(url, cookie.to_str().expect("a cookie is text"));
        }
        let (status, headers) = (response.status(), response.headers().clone());
        let body = response.bytes().await.expect("a complete body");
        Answer { request: format!("{method} {url}"), status, headers, body }
    }

    fn cookies_for(&self, url: &Url) -> String {
        let host = url.host_str().unwrap_or_default();
        let fits = |path: &str| {
            let rest = url.path().strip_prefix(path.trim_end_matches('/'));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let sent = self.cookies.iter().filter(|((of, path, _), _)| of == host && fits(path));
        sent.map(|((_, _, name), value)| format!("{name}={value}")).collect::<Vec<_>>().join("; ")
    }

    fn store_cookie(&mut self, url: &Url, cookie: &str) {
        let mut parts = cookie.split(';').map(str::trim);
        let (name, value) = parts.next().and_then(|pair| pair.split_once('=')).expect("a cookie has a name");
        let attributes: BTreeMap<String, &str> = parts
            .map(|part| part.split_once('=').unwrap_or((part, "")))
            .map(|(name, value)| (name.to_lowercase(), value))
            .collect();
        let path = attributes.get("path").copied().unwrap_or("/").to_owned();
        let key = (url.host_str().unwrap_or_default().to_owned(), path, name.to_owned());
        let is_over = attributes.get("max-age").is_some_and(|age| *age == "0")
            || attributes.get("expires").is_some_and(|at| at.contains("1970"));
        if is_over {
            drop(self.cookies.remove(&key));
        } else {
            drop(self.cookies.insert(key, value.to_owned()));
        }
    }
}
