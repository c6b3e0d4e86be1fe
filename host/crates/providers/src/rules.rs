//! The rules for catalogue files beyond their structure. Each rule prevents a mistake in a file from sending a
//! request to the wrong host or without its credentials.

use url::Url;

use super::Origin;
use super::auth_mode::AuthMode;
use super::provider::Provider;
use super::proxy::{Paginate, Verification};
use super::question::Question;
use super::template::Variable;
use super::url_template::UrlTemplate;
use super::webhook::{
    Algorithm, HandshakeHmac, SignatureRecipe, SignedPart, Verification as WebhookVerification,
};

/// A violated rule, and the key that violates it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Broken {
    pub key: String,
    pub problem: String,
}

/// Checks all rules and returns the first violation.
pub(super) fn check(provider: &Provider, file_stem: &str, origin: Origin) -> Result<(), Broken> {
    let name = &provider.name;
    require(name.as_str() == file_stem, "name", || {
        format!("`{name}` must equal the file's name, `{file_stem}`")
    })?;
    check_links(provider)?;
    check_questions(provider)?;
    check_urls(provider, origin)?;
    check_credentials(provider)?;
    check_webhook(provider)?;
    check_hints(provider)
}

fn check_links(provider: &Provider) -> Result<(), Broken> {
    for (key, link) in [("docs", &provider.docs), ("source.address", &provider.source.address)] {
        let is_link = Url::parse(link).is_ok_and(|url| url.scheme() == "https");
        require(is_link, key, || format!("`{link}` must be an https URL"))?;
    }
    Ok(())
}

fn check_questions(provider: &Provider) -> Result<(), Broken> {
    let sections =
        [("credentials", &provider.credentials), ("connection_config", &provider.connection_config)];
    for (section, questions) in sections {
        for (name, question) in questions {
            let key = format!("{section}.{name}");
            for (what, text) in [("example", &question.example), ("default_value", &question.default_value)] {
                let fits = match (&question.pattern, text) {
                    (Some(pattern), Some(text)) => pattern.matches(text),
                    _ => true,
                };
                require(fits, &format!("{key}.{what}"), || {
                    "does not match the question's pattern".to_owned()
                })?;
                let is_choice =
                    |text: &String| question.choices.is_empty() || question.choices.contains(text);
                require(text.as_ref().is_none_or(is_choice), &format!("{key}.{what}"), || {
                    "is not one of the question's `enum` values".to_owned()
                })?;
            }
            let has_source = question.from_token_response.is_some() || question.from_redirect.is_some();
            require(!has_source || question.automated, &key, || {
                "the connection flow fills in this answer, so set `automated = true`".to_owned()
            })?;
            require(question.extract.is_none() || has_source, &format!("{key}.extract"), || {
                "needs `from_token_response` or `from_redirect`, and neither is set".to_owned()
            })?;
            let takes_one = question.extract.as_ref().is_none_or(|extract| extract.groups() == 1);
            require(takes_one, &format!("{key}.extract"), || "must have exactly one group".to_owned())?;
        }
    }
    for (key, variable) in flow_variables(provider) {
        require(matches!(variable, Variable::ConnectionConfig(_)), &key, || {
            format!("`${{{variable}}}` is not allowed here; use connectionConfig.NAME")
        })?;
    }
    let variables =
        provider.proxy.variables().chain(exchange_variables(provider)).chain(flow_variables(provider));
    for (key, variable) in variables {
        let (section, known) = match variable {
            Variable::ConnectionConfig(name) => {
                ("connection_config", provider.connection_config.contains_key(name))
            }
            Variable::Credential(name) => ("credentials", provider.credentials.contains_key(name)),
            _ => continue,
        };
        require(known, &key, || format!("`${{{variable}}}` needs a question with this name in `{section}`"))?;
    }
    Ok(())
}

/// Returns every variable in the parameters of OAuth 2, with its key.
fn flow_variables(provider: &Provider) -> impl Iterator<Item = (String, &Variable)> {
    let params = [
        ("authorization_params", &provider.authorization_params),
        ("token_params", &provider.token_params),
        ("refresh_params", &provider.refresh_params),
    ];
    params.into_iter().flat_map(|(key, params)| {
        params.iter().flat_map(move |(name, template)| {
            template.variables().map(move |variable| (format!("{key}.{name}"), variable))
        })
    })
}

/// Returns every variable in token requests and in signed content, with its key.
fn exchange_variables(provider: &Provider) -> impl Iterator<Item = (String, &Variable)> {
    let requests =
        [("token_request", &provider.token_request), ("refresh_request", &provider.refresh_request)];
    let of_requests = requests.into_iter().filter_map(|(key, request)| Some((key, request.as_ref()?)));
    let of_requests = of_requests.flat_map(|(key, request)| {
        let headers = request.headers.values().map(move |template| (format!("{key}.headers"), template));
        headers.chain(request.body.iter().map(move |(name, value)| (format!("{key}.body.{name}"), value)))
    });
    let of_jwt = provider.jwt.iter().flat_map(|jwt| {
        let header = jwt.header.iter().map(|(name, value)| (format!("jwt.header.{name}"), value));
        let claims = jwt.claims.iter().map(|(name, value)| (format!("jwt.claims.{name}"), value));
        header.chain(claims).chain([("jwt.key".to_owned(), &jwt.key)])
    });
    of_requests
        .chain(of_jwt)
        .flat_map(|(key, template)| template.variables().map(move |variable| (key.clone(), variable)))
}

fn check_urls(provider: &Provider, origin: Origin) -> Result<(), Broken> {
    let free_host = provider.proxy.free_host;
    require(!free_host || origin == Origin::Operator, "proxy.free_host", || {
        "only files in the operator's folder can let an answer choose the host".to_owned()
    })?;
    let urls = [
        ("proxy.base_url", &provider.proxy.base_url),
        ("request_url", &provider.request_url),
        ("authorization_url", &provider.authorization_url),
        ("token_url", &provider.token_url),
        ("refresh_url", &provider.refresh_url),
        ("installations_url", &provider.installations_url),
    ];
    let of_requests = [
        ("token_request.url", provider.token_request.as_ref().and_then(|request| request.url.as_ref())),
        ("refresh_request.url", provider.refresh_request.as_ref().and_then(|request| request.url.as_ref())),
    ];
    for (key, url) in of_requests {
        if let Some(url) = url {
            check_url(provider, key, url, free_host)?;
        }
    }
    for (key, url) in urls {
        if let Some(url) = url {
            check_url(provider, key, url, free_host)?;
        }
    }
    let mode = provider.auth_mode;
    let is_oauth1 = mode == AuthMode::OAuth1;
    let fetches_token = matches!(
        mode,
        AuthMode::OAuth1
            | AuthMode::OAuth2
            | AuthMode::OAuth2ClientCredentials
            | AuthMode::App
            | AuthMode::Custom
            | AuthMode::TwoStep
            | AuthMode::Bill
    );
    let exchanges = matches!(mode, AuthMode::TwoStep | AuthMode::Bill);
    let may_exchange = exchanges || mode == AuthMode::Jwt;
    let redirects = matches!(mode, AuthMode::OAuth1 | AuthMode::OAuth2 | AuthMode::Custom);
    let is_custom = mode == AuthMode::Custom;
    // Each key with: whether it is set, whether it is allowed, and whether it is required.
    let given = [
        ("request_url", provider.request_url.is_some(), is_oauth1, is_oauth1),
        ("authorization_url", provider.authorization_url.is_some(), mode.has_authorization_url(), redirects),
        ("token_url", provider.token_url.is_some(), mode.has_token_url(), fetches_token),
        ("token_request", provider.token_request.is_some(), may_exchange, exchanges),
        ("refresh_request", provider.refresh_request.is_some(), may_exchange, false),
        ("installations_url", provider.installations_url.is_some(), is_custom, is_custom),
        ("jwt", provider.jwt.is_some(), mode == AuthMode::Jwt, mode == AuthMode::Jwt),
        ("signature", provider.signature.is_some(), mode == AuthMode::Signature, mode == AuthMode::Signature),
    ];
    for (key, is_given, makes_sense, is_needed) in given {
        require(!is_given || makes_sense, key, || format!("is not used by {mode}; remove it"))?;
        require(is_given || !is_needed, key, || format!("is required for {mode}"))?;
    }
    Ok(())
}

fn check_url(provider: &Provider, key: &str, url: &UrlTemplate, free_host: bool) -> Result<(), Broken> {
    for name in url.answers() {
        let question = provider.connection_config.get(name);
        let is_answered = |question: &Question| !question.optional || question.default_value.is_some();
        require(question.is_some_and(is_answered), key, || {
            format!(
                "`{name}` must be a question in `connection_config` that is not optional or has a default"
            )
        })?;
    }
    if free_host {
        return Ok(());
    }
    for name in url.host_answers() {
        require(provider.connection_config.get(name).is_some_and(is_bounded), key, || {
            format!("`{name}` is part of a host name, so `connection_config.{name}` must have a pattern")
        })?;
    }
    let choices = |name: &str| {
        provider.connection_config.get(name).map_or(&[][..], |question| question.choices.as_slice())
    };
    require(url.has_fixed_domain(choices), key, || {
        "the host must end in a fixed domain such as `.example.com`, or credentials could be sent anywhere"
            .to_owned()
    })
}

fn is_bounded(question: &Question) -> bool {
    question.pattern.is_some() || !question.choices.is_empty()
}

fn check_credentials(provider: &Provider) -> Result<(), Broken> {
    let mode = provider.auth_mode;
    for (key, variable) in provider.proxy.variables() {
        require(mode.provides(variable), &key, || format!("{mode} has no `${{{variable}}}`"))?;
    }
    let placed = mode != AuthMode::ApiKey || provider.proxy.places_credentials();
    require(placed, "proxy", || {
        "API_KEY needs a header or a query parameter with `${apiKey}`; otherwise the key is never sent"
            .to_owned()
    })?;
    let asked: &[&str] = match mode {
        AuthMode::ApiKey => &["apiKey"],
        AuthMode::Basic | AuthMode::Signature => &["username", "password"],
        AuthMode::TokenBased => &["token_id", "token_secret"],
        AuthMode::OAuth2ClientCredentials => &["client_id", "client_secret"],
        _ => &[],
    };
    let asks_freely = matches!(mode, AuthMode::Jwt | AuthMode::TwoStep | AuthMode::Bill);
    require(!asks_freely || !provider.credentials.is_empty(), "credentials", || {
        format!("{mode} needs questions for the credentials that are exchanged for a token")
    })?;
    for name in asked {
        let key = format!("credentials.{name}");
        require(provider.credentials.contains_key(*name), &key, || format!("{mode} requires this question"))?;
    }
    Ok(())
}

fn check_webhook(provider: &Provider) -> Result<(), Broken> {
    let Some(webhook) = &provider.webhook else { return Ok(()) };
    let is_link = Url::parse(&webhook.source.address).is_ok_and(|url| url.scheme() == "https");
    require(is_link, "webhook.source.address", || "must be an https URL".to_owned())?;
    if let WebhookVerification::Signature(recipe) = &webhook.verification {
        check_signature(recipe)?;
    }
    for handshake in &webhook.handshakes {
        let is_public =
            |hmac: &HandshakeHmac| matches!(hmac.algorithm, Algorithm::Ed25519 | Algorithm::EcdsaP256);
        require(!handshake.hmac.as_ref().is_some_and(is_public), "webhook.handshake.hmac.algorithm", || {
            "must be an HMAC, because a public key cannot sign".to_owned()
        })?;
    }
    for route in &webhook.routes {
        let takes_one = route.extract.as_ref().is_none_or(|extract| extract.groups() == 1);
        require(takes_one, "webhook.route.extract", || "must have exactly one group".to_owned())?;
        if let Some(name) = route.connection.as_str().strip_prefix("connection_config.") {
            check_routed_answer(provider, name)?;
        }
    }
    Ok(())
}

/// Users who can choose such an answer can choose whose webhooks the connection receives.
fn check_routed_answer(provider: &Provider, name: &str) -> Result<(), Broken> {
    let key = "webhook.route.connection";
    let question = provider.connection_config.get(name);
    require(question.is_some(), key, || {
        format!(
            "`{name}` must be a question in `connection_config`; use `metadata.NAME` for values \
                 that only a backend knows"
        )
    })?;
    let is_browsers = question.is_some_and(|question| question.from_redirect.is_some());
    let mut confirmed = provider.proxy.verification.iter().flat_map(Verification::confirmed_answers);
    let is_confirmed = provider.auth_mode != AuthMode::OAuth2 || confirmed.any(|answer| answer == name);
    require(!is_browsers || is_confirmed, key, || {
        format!(
            "a browser supplies `{name}`, so `proxy.verification.endpoint` must ask the provider to confirm it"
        )
    })
}

fn check_signature(recipe: &SignatureRecipe) -> Result<(), Broken> {
    let key = "webhook.verification";
    require(!recipe.signature.is_empty(), &format!("{key}.signature"), || {
        "must list at least one place".to_owned()
    })?;
    let uses_timestamp = recipe.signed.0.contains(&SignedPart::Timestamp);
    let Some(timestamp) = &recipe.timestamp else {
        return require(!uses_timestamp, &format!("{key}.signed"), || {
            "contains `{timestamp}`, so `timestamp` must be set".to_owned()
        });
    };
    require(timestamp.at.is_some() != timestamp.prefix.is_some(), &format!("{key}.timestamp"), || {
        "needs exactly one of `at` (a separate place) and `prefix` (in the same place as the signature)"
            .to_owned()
    })?;
    require(timestamp.prefix.is_none() || recipe.separator.is_some(), &format!("{key}.separator"), || {
        "is required to separate timestamp and signature".to_owned()
    })
}

fn check_hints(provider: &Provider) -> Result<(), Broken> {
    if let Some(color) = &provider.color {
        let digits = color.strip_prefix('#').filter(|digits| digits.len() == 6);
        let is_color = digits.is_some_and(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
        require(is_color, "color", || format!("`{color}` must have the form `#rrggbb`"))?;
    }
    if let Some(limit) = provider.proxy.rate_limit {
        let makes_sense = limit.requests > 0 && limit.per_seconds > 0;
        require(makes_sense, "proxy.rate_limit", || "both numbers must be at least 1".to_owned())?;
    }
    if let Some(Paginate::Link {
        link_path_in_response_body: body,
        link_rel_in_response_header: header,
        ..
    }) = &provider.proxy.paginate
    {
        require(body.is_some() != header.is_some(), "proxy.paginate", || {
            "needs exactly one of `link_path_in_response_body` and `link_rel_in_response_header`".to_owned()
        })?;
    }
    if let Some(verification) = &provider.proxy.verification {
        let key = "proxy.verification.endpoint";
        let is_path = verification.endpoint.as_str().starts_with('/');
        require(is_path, key, || "must be a path that starts with `/`".to_owned())?;
        for variable in verification.endpoint.variables() {
            let fits = matches!(variable, Variable::ConnectionConfig(name)
                if provider.connection_config.get(name).is_some_and(is_bounded));
            require(fits, key, || {
                format!("`${{{variable}}}` must be an answer in `connection_config` that has a pattern")
            })?;
        }
    }
    Ok(())
}

fn require(holds: bool, key: &str, problem: impl FnOnce() -> String) -> Result<(), Broken> {
    if holds { Ok(()) } else { Err(Broken { key: key.to_owned(), problem: problem() }) }
}
