//! Signs JSON Web Tokens. The `jsonwebtoken` crate encodes them. The signatures come from `ring`, which is a
//! dependency of the TLS library anyway.

use std::sync::Once;

use jsonwebtoken::crypto::{CryptoProvider, JwkUtils, JwtSigner, JwtVerifier};
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::signature::{self, Signer};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header};
use ring::hmac;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, RSA_PKCS1_SHA256, RsaKeyPair};
use serde_json::{Map, Value};

use syncline_providers::JwtAlgorithm;
use syncline_types::secret::Secret;

/// Why a token could not be signed. The message does not disclose the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum JwtError {
    #[error(
        "the key is not an RSA private key of at least 2048 bits in PEM; it must start with \
         `-----BEGIN PRIVATE KEY-----` or `-----BEGIN RSA PRIVATE KEY-----`"
    )]
    RsaKey,
    #[error(
        "the key is not a private key on the curve P-256 in PEM; it must start with \
         `-----BEGIN PRIVATE KEY-----`"
    )]
    EcKey,
    #[error("the token's header or claims are invalid")]
    Content,
}

/// Signs `claims` with a secret or with a private key in PEM, depending on the algorithm. `header` contains the
/// header's members in addition to `typ` and `alg`, such as `kid`.
pub fn sign(
    algorithm: JwtAlgorithm,
    key: &Secret<Vec<u8>>,
    header: &Map<String, Value>,
    claims: &Map<String, Value>,
) -> Result<Secret<String>, JwtError> {
    install_cryptography();
    let key = encoding_key(algorithm, key.expose())?;
    let mut members = header.clone();
    members.insert("typ".to_owned(), "JWT".into());
    members.insert("alg".to_owned(), algorithm_name(algorithm).into());
    let header: Header = serde_json::from_value(Value::Object(members)).map_err(|_| JwtError::Content)?;
    match jsonwebtoken::encode(&header, claims, &key) {
        Ok(token) => Ok(token.into()),
        Err(error) => Err(match error.kind() {
            ErrorKind::InvalidRsaKey(_) => JwtError::RsaKey,
            ErrorKind::InvalidEcdsaKey => JwtError::EcKey,
            _ => JwtError::Content,
        }),
    }
}

fn encoding_key(algorithm: JwtAlgorithm, key: &[u8]) -> Result<EncodingKey, JwtError> {
    match algorithm {
        JwtAlgorithm::Hs256 => Ok(EncodingKey::from_secret(key)),
        JwtAlgorithm::Rs256 => EncodingKey::from_rsa_pem(key).map_err(|_| JwtError::RsaKey),
        JwtAlgorithm::Es256 => EncodingKey::from_ec_pem(key).map_err(|_| JwtError::EcKey),
    }
}

fn algorithm_name(algorithm: JwtAlgorithm) -> &'static str {
    match algorithm {
        JwtAlgorithm::Hs256 => "HS256",
        JwtAlgorithm::Rs256 => "RS256",
        JwtAlgorithm::Es256 => "ES256",
    }
}

fn install_cryptography() {
    static INSTALLED: Once = Once::new();
    static CRYPTOGRAPHY: CryptoProvider = CryptoProvider {
        signer_factory: signer,
        verifier_factory: verifier,
        jwk_utils: JwkUtils::new_unimplemented(),
    };
    INSTALLED.call_once(|| {
        let _already_installed = CRYPTOGRAPHY.install_default();
    });
}

/// A key that is ready to sign.
enum RingSigner {
    Hmac(hmac::Key),
    Rsa(RsaKeyPair),
    Ec(EcdsaKeyPair),
}

fn signer(algorithm: &Algorithm, key: &EncodingKey) -> Result<Box<dyn JwtSigner>, Error> {
    let signer = match algorithm {
        Algorithm::HS256 => RingSigner::Hmac(hmac::Key::new(hmac::HMAC_SHA256, key.try_get_hmac_secret()?)),
        Algorithm::RS256 => RingSigner::Rsa(
            RsaKeyPair::from_der(key.inner()).map_err(|error| ErrorKind::InvalidRsaKey(error.to_string()))?,
        ),
        Algorithm::ES256 => RingSigner::Ec(
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, key.inner(), &SystemRandom::new())
                .map_err(|_| ErrorKind::InvalidEcdsaKey)?,
        ),
        _ => return Err(ErrorKind::InvalidAlgorithm.into()),
    };
    Ok(Box::new(signer))
}

/// Tokens of others are never verified here.
fn verifier(_: &Algorithm, _: &DecodingKey) -> Result<Box<dyn JwtVerifier>, Error> {
    Err(ErrorKind::InvalidAlgorithm.into())
}

impl Signer<Vec<u8>> for RingSigner {
    fn try_sign(&self, message: &[u8]) -> Result<Vec<u8>, signature::Error> {
        match self {
            Self::Hmac(key) => Ok(hmac::sign(key, message).as_ref().to_vec()),
            Self::Rsa(key) => {
                let mut signature = vec![0; key.public().modulus_len()];
                key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), message, &mut signature)
                    .map_err(|_| signature::Error::new())?;
                Ok(signature)
            }
            Self::Ec(key) => {
                let signature =
                    key.sign(&SystemRandom::new(), message).map_err(|_| signature::Error::new())?;
                Ok(signature.as_ref().to_vec())
            }
        }
    }
}

impl JwtSigner for RingSigner {
    fn algorithm(&self) -> Algorithm {
        match self {
            Self::Hmac(_) => Algorithm::HS256,
            Self::Rsa(_) => Algorithm::RS256,
            Self::Ec(_) => Algorithm::ES256,
        }
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use ring::signature::{
        ECDSA_P256_SHA256_FIXED, KeyPair, RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey,
        VerificationAlgorithm,
    };
    use serde_json::json;

    use super::*;

    const RSA_KEY: &str = include_str!("../../../../tests/keys/rsa_pkcs1.pem");
    const RSA_KEY_PKCS8: &str = include_str!("../../../../tests/keys/rsa_pkcs8.pem");
    const EC_KEY: &str = include_str!("../../../../tests/keys/ec.pem");

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    fn sign_with(algorithm: JwtAlgorithm, key: &str) -> Result<String, JwtError> {
        let key = key.as_bytes().to_vec().into();
        let token = sign(algorithm, &key, &object(json!({ "kid": "k1" })), &object(json!({ "iss": "me" })))?;
        Ok(token.expose().clone())
    }

    /// Returns the signed message and its signature.
    fn split(token: &str) -> (&str, Vec<u8>) {
        let (message, signature) = token.rsplit_once('.').unwrap();
        (message, URL_SAFE_NO_PAD.decode(signature).unwrap())
    }

    fn verify(algorithm: &'static dyn VerificationAlgorithm, public: &[u8], token: &str) {
        let (message, signature) = split(token);
        UnparsedPublicKey::new(algorithm, public).verify(message.as_bytes(), &signature).unwrap();
    }

    #[test]
    fn a_token_contains_the_given_header_and_claims() {
        let token = sign_with(JwtAlgorithm::Hs256, "secret").unwrap();
        let parts: Vec<Value> = token
            .split('.')
            .take(2)
            .map(|part| serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap())
            .collect();
        assert_eq!(parts[0], json!({ "alg": "HS256", "typ": "JWT", "kid": "k1" }));
        assert_eq!(parts[1], json!({ "iss": "me" }));
        let (message, signature) = split(&token);
        hmac::verify(&hmac::Key::new(hmac::HMAC_SHA256, b"secret"), message.as_bytes(), &signature).unwrap();
    }

    #[test]
    fn private_keys_sign_in_both_forms_of_pem() {
        let pair =
            RsaKeyPair::from_der(EncodingKey::from_rsa_pem(RSA_KEY.as_bytes()).unwrap().inner()).unwrap();
        for key in [RSA_KEY, RSA_KEY_PKCS8] {
            let token = sign_with(JwtAlgorithm::Rs256, key).unwrap();
            verify(&RSA_PKCS1_2048_8192_SHA256, pair.public().as_ref(), &token);
        }
        let pair = EcdsaKeyPair::from_pkcs8(
            &ECDSA_P256_SHA256_FIXED_SIGNING,
            EncodingKey::from_ec_pem(EC_KEY.as_bytes()).unwrap().inner(),
            &SystemRandom::new(),
        );
        let token = sign_with(JwtAlgorithm::Es256, EC_KEY).unwrap();
        verify(&ECDSA_P256_SHA256_FIXED, pair.unwrap().public_key().as_ref(), &token);
    }

    #[test]
    fn a_key_of_another_kind_is_rejected() {
        for key in ["", "secret", EC_KEY] {
            assert_eq!(sign_with(JwtAlgorithm::Rs256, key), Err(JwtError::RsaKey), "{key}");
        }
        for key in ["secret", RSA_KEY, RSA_KEY_PKCS8] {
            assert_eq!(sign_with(JwtAlgorithm::Es256, key), Err(JwtError::EcKey), "{key}");
        }
    }
}
