//! The `UsernameToken` of WS-Security, sent in an HTTP header. It proves knowledge of the password for one request.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, SecondsFormat, Utc};
use http::HeaderName;
use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY};

use syncline_crypto::hex;
use syncline_providers::SignatureScheme;
use syncline_types::secret::Secret;

/// The default header, unless the provider file names another one.
pub(super) const HEADER: HeaderName = HeaderName::from_static("x-wsse");

/// Creates a token for one request at the current time.
pub(super) fn username_token(scheme: SignatureScheme, username: &str, password: &str) -> Secret<String> {
    token(scheme, username, password, &rand::random::<[u8; 16]>(), Utc::now())
}

fn token(
    scheme: SignatureScheme,
    username: &str,
    password: &str,
    nonce: &[u8],
    now: DateTime<Utc>,
) -> Secret<String> {
    let created = now.to_rfc3339_opts(SecondsFormat::Secs, true);
    let digest_of = |nonce: &[u8]| {
        let mut digest = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
        for part in [nonce, created.as_bytes(), password.as_bytes()] {
            digest.update(part);
        }
        digest.finish()
    };
    let (nonce, digest) = match scheme {
        SignatureScheme::Wsse => (STANDARD.encode(nonce), STANDARD.encode(digest_of(nonce))),
        SignatureScheme::WsseHex => {
            let nonce = hex(nonce);
            let digest = hex(digest_of(nonce.as_bytes()).as_ref());
            (nonce, STANDARD.encode(digest))
        }
    };
    let username = username.replace('\\', r"\\").replace('"', r#"\""#);
    Secret::new(format!(
        r#"UsernameToken Username="{username}", PasswordDigest="{digest}", Nonce="{nonce}", Created="{created}""#
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the profile's first publication, with the nonce `d36e316282959a9ed4c89851497a717f`.
    #[test]
    fn the_digest_matches_the_example_of_the_profile() {
        let now = "2003-12-15T14:43:07Z".parse().unwrap();
        let new_token =
            token(SignatureScheme::Wsse, "bob", "taadtaadpstcsm", b"d36e316282959a9ed4c89851497a717f", now);
        assert!(
            new_token.expose().contains(r#"PasswordDigest="quR/EWLAV4xLf9Zqyw4pDmfV9OY=""#),
            "{}",
            new_token.expose()
        );
        assert!(new_token.expose().starts_with(r#"UsernameToken Username="bob", "#));
    }

    #[test]
    fn every_token_is_different() {
        let new_token = || username_token(SignatureScheme::Wsse, "a", "b").expose().clone();
        assert_ne!(new_token(), new_token());
    }

    #[test]
    fn the_hex_scheme_encodes_nonce_and_digest_as_hexadecimal() {
        let now = "2003-12-15T14:43:07Z".parse().unwrap();
        let new_token = token(SignatureScheme::WsseHex, "bob", "taadtaadpstcsm", &[0xd3, 0x6e], now);
        assert!(new_token.expose().contains(r#"Nonce="d36e""#), "{}", new_token.expose());
        assert!(
            new_token
                .expose()
                .contains(r#"PasswordDigest="Mzc4YjhjMjE1YjAyNjg4ZjZiNjRjYzIwYmMyYzVlOGI3MTE1N2IyNw==""#),
            "{}",
            new_token.expose()
        );
    }
}
