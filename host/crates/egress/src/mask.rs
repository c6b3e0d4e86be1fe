//! Masks secrets in URLs for logs.

use percent_encoding::percent_decode_str;
use url::Url;

/// A parameter whose name contains one of these words is masked. The list errs on the side of masking, because signed
/// URLs, session keys and one-time codes have no common form.
const SECRET_WORDS: [&str; 12] = [
    "token",
    "secret",
    "pass",
    "pwd",
    "key",
    "sig",
    "auth",
    "code",
    "credential",
    "session",
    "jwt",
    "assertion",
];

/// Returns the URL without user, password and fragment, and with `***` for every parameter that is or may be a secret.
/// `secret_names` are the names of the parameters that carry credentials.
pub fn mask_url(url: &Url, secret_names: &[String]) -> String {
    let mut masked = url.clone();
    masked.set_fragment(None);
    // Neither call fails for a URL with a host, and every URL here has one.
    let _ = masked.set_username("");
    let _ = masked.set_password(None);
    if let Some(query) = url.query() {
        let pairs: Vec<String> = query.split('&').map(|pair| mask_pair(pair, secret_names)).collect();
        masked.set_query(Some(&pairs.join("&")));
    }
    masked.into()
}

fn mask_pair(pair: &str, secret_names: &[String]) -> String {
    let Some((raw_name, _)) = pair.split_once('=') else {
        return pair.to_owned();
    };
    let name = percent_decode_str(raw_name).decode_utf8_lossy();
    let lower = name.to_ascii_lowercase();
    let is_secret = secret_names.iter().any(|secret| *secret == *name)
        || SECRET_WORDS.iter().any(|word| lower.contains(word));
    if is_secret { format!("{raw_name}=***") } else { pair.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(url: &str) -> String {
        mask_url(&Url::parse(url).unwrap(), &["k".to_owned()])
    }

    #[test]
    fn possible_secrets_are_masked_and_other_parameters_are_not() {
        assert_eq!(
            mask(
                "https://u:p@example.com/a?limit=5&k=1&access_token=abc&X-Amz-Signature=ff&page%5Bafter%5D=x#f"
            ),
            "https://example.com/a?limit=5&k=***&access_token=***&X-Amz-Signature=***&page%5Bafter%5D=x"
        );
        assert_eq!(
            mask("https://example.com/a?api%5Fkey=1&flag&Password=&b=key"),
            "https://example.com/a?api%5Fkey=***&flag&Password=***&b=key"
        );
        assert_eq!(mask("https://example.com/a"), "https://example.com/a");
    }
}
