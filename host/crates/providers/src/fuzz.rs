//! Properties of the parsers for generated inputs.

use std::borrow::Cow;

use http::{HeaderMap, HeaderValue, header};
use serde_json::{Map, Value};

use super::*;
use crate::webhook::{Pointer, RawBody, form_members};

fn read_file(text: &str, origin: Origin) -> Result<Arc<Provider>, CatalogueError> {
    let mut providers = Providers::new();
    add(&mut providers, "acme.toml", "acme", text, origin)?;
    Ok(providers.into_values().next().unwrap())
}

#[test]
fn an_accepted_provider_file_can_be_shown_and_used() {
    syncline_fuzz::check_text("provider-files", |text| {
        let provider = match read_file(text, Origin::Operator) {
            Ok(provider) => provider,
            Err(error) => {
                // The line and the pattern are quoted, and each quote has a line of marks.
                assert!(error.to_string().len() <= 8 * text.len() + 1_000, "{error}");
                // The rules for built-in files are stricter.
                assert!(read_file(text, Origin::Shipped).is_err());
                return;
            }
        };
        let shown = serde_json::to_value(&*provider).unwrap();
        let commented = read_file(&format!("# before\n{text}\n# after"), Origin::Operator).unwrap();
        assert_eq!(serde_json::to_value(&*commented).unwrap(), shown);
        assert!(!monogram(&provider).is_empty());
        let names = provider.connection_config.keys();
        let answers: Map<String, Value> = names.map(|name| (name.clone(), "a".into())).collect();
        if provider.check_config(&answers).is_ok() {
            assert!(provider.base_url(&answers).is_ok());
        }
        drop(provider.check_config(&Map::new()));
    });
}

/// The first line of the input is the template, the second one is the answer to every question.
#[test]
fn an_answer_changes_only_its_part_of_an_address() {
    syncline_fuzz::check_text("url-templates", |text| {
        let (template, answer) = text.split_once('\n').unwrap_or((text, "a"));
        if let Ok(template) = Template::try_from(template.to_owned()) {
            assert_eq!(Template::try_from(String::from(template.clone())).as_ref(), Ok(&template));
            let printed = template.render(|variable| Ok::<_, ()>(format!("${{{variable}}}").into()));
            assert_eq!(printed.as_deref(), Ok(template.as_str()));
        }
        let Ok(template) = UrlTemplate::try_from(template.to_owned()) else { return };
        assert_eq!(UrlTemplate::try_from(String::from(template.clone())).as_ref(), Ok(&template));
        let usual = template.render(|_| Ok("a".into())).unwrap();
        let Ok(url) = template.render(|_| Ok(Cow::Borrowed(answer))) else { return };
        assert_eq!((url.scheme(), url.port()), (usual.scheme(), usual.port()));
        assert_eq!((url.username(), url.password(), url.query(), url.fragment()), ("", None, None, None));
        let segments = |url: &url::Url| url.path().split('/').count();
        assert_eq!(segments(&url), segments(&usual), "{url}");
        let host = url.host_str().unwrap();
        if template.host_answers().next().is_none() {
            assert_eq!(Some(host), usual.host_str());
        }
        if template.has_fixed_domain(|_| &[]) {
            let domain = |host: &str| host.rsplit('.').take(2).map(str::to_owned).collect::<Vec<_>>();
            assert_eq!(domain(host), domain(usual.host_str().unwrap()), "{url}");
        }
    });
}

/// The first line of the input is the content type, the second one is a place in the body, and the rest is the body.
#[test]
fn a_removed_value_of_a_webhook_is_gone_and_the_rest_stays() {
    syncline_fuzz::check("webhook-bodies", |input| {
        let mut lines = input.splitn(3, |byte| *byte == b'\n');
        let mut next = || lines.next().unwrap_or_default();
        let (content_type, place, body) = (next(), next(), next());
        let Ok(content_type) = HeaderValue::from_bytes(content_type) else { return };
        let Ok(place) = String::from_utf8_lossy(place).parse::<Pointer>() else { return };
        let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, content_type)]);
        assert!(form_members(body) >= url::form_urlencoded::parse(body).count());
        for member in [None, Some("payload")] {
            let raw = RawBody::new(&headers, body, member);
            let without = raw.without(&place);
            let remaining = RawBody::new(&headers, &without, member);
            assert!(remaining.texts(&place).iter().all(String::is_empty), "{place:?}");
            assert_eq!(remaining.without(&place), without);
        }
    });
}
