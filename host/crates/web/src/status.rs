//! The HTTP statuses of error codes.

use axum::http::StatusCode;

use syncline_types::error_code::ErrorCode;

/// The statuses of a code, the usual one first. Empty for codes that occur only in runs and connections.
pub fn statuses(code: ErrorCode) -> &'static [StatusCode] {
    match code {
        ErrorCode::IntegrationNotAllowed
        | ErrorCode::InvalidQueryParams
        | ErrorCode::InvalidHeaders
        | ErrorCode::InvalidUriParams
        | ErrorCode::InvalidBody
        | ErrorCode::InvalidJson
        | ErrorCode::InvalidAuthMode
        | ErrorCode::ConnectionTestFailed
        | ErrorCode::RequestTokenExternalError
        | ErrorCode::MissingClientId
        | ErrorCode::InvalidConnection
        | ErrorCode::InvalidVariant
        | ErrorCode::ResourceCapped
        | ErrorCode::NoSyncsFound
        | ErrorCode::InvalidProxyRequest
        | ErrorCode::HostNotAllowed
        | ErrorCode::AddressNotAllowed
        | ErrorCode::BaseUrlOverrideNotAllowed
        | ErrorCode::InvalidCursor
        | ErrorCode::UnknownHandshake
        | ErrorCode::ProviderConfigErr
        | ErrorCode::InvalidConnectionConfig
        | ErrorCode::StateErr
        | ErrorCode::StateCookieErr
        | ErrorCode::AccessDenied
        | ErrorCode::CallbackErr
        | ErrorCode::TokenErr
        | ErrorCode::ConnectionValidationFailed
        | ErrorCode::ConnectionNotFound
        | ErrorCode::CannotDeleteDefaultEnvironment
        | ErrorCode::InvalidActionInput
        | ErrorCode::InvalidActionOutput
        | ErrorCode::ActionScriptRuntimeError
        | ErrorCode::ScriptInternalError
        | ErrorCode::LimitExceeded
        | ErrorCode::InvalidBundle
        | ErrorCode::InvalidSyncConfig => &[StatusCode::BAD_REQUEST],
        ErrorCode::InvalidCredentials => &[StatusCode::FAILED_DEPENDENCY, StatusCode::BAD_REQUEST],
        ErrorCode::MissingAuthHeader
        | ErrorCode::MalformedAuthHeader
        | ErrorCode::InvalidSecretKeyFormat
        | ErrorCode::UnknownAccount
        | ErrorCode::InvalidConnectSessionTokenFormat
        | ErrorCode::UnknownConnectSessionToken
        | ErrorCode::MissingPublicKey
        | ErrorCode::DeprecatedAuthentication
        | ErrorCode::MissingWebhookSignature
        | ErrorCode::InvalidWebhookSignature
        | ErrorCode::ExpiredWebhookSignature
        | ErrorCode::SignInRequired
        | ErrorCode::SignInFailed => &[StatusCode::UNAUTHORIZED],
        ErrorCode::Forbidden
        | ErrorCode::OriginNotAllowed
        | ErrorCode::CrossSiteRequest
        | ErrorCode::BundleSignatureRequired
        | ErrorCode::InvalidBundleSignature => &[StatusCode::FORBIDDEN],
        ErrorCode::UnknownIntegration
        | ErrorCode::UnknownProvider
        | ErrorCode::UnknownConnection
        | ErrorCode::UnknownSync
        | ErrorCode::UnknownVariant
        | ErrorCode::UnknownFunction
        | ErrorCode::UnknownModel
        | ErrorCode::UnknownRun
        | ErrorCode::UnknownRecording
        | ErrorCode::UnknownDeployment
        | ErrorCode::UnknownWebhook
        | ErrorCode::WebhooksNotTaken
        | ErrorCode::UnknownDeadLetter
        | ErrorCode::UnknownEnvironment
        | ErrorCode::UnknownApiKey
        | ErrorCode::UnknownAction
        | ErrorCode::UnknownJob
        | ErrorCode::UnknownDashboardAccount
        | ErrorCode::UnknownDashboardSession
        | ErrorCode::ActionNotFinished
        | ErrorCode::NotFound => &[StatusCode::NOT_FOUND],
        ErrorCode::MethodNotAllowed => &[StatusCode::METHOD_NOT_ALLOWED],
        ErrorCode::BodyTimeout | ErrorCode::ExecutionTimeout => &[StatusCode::REQUEST_TIMEOUT],
        ErrorCode::SyncVariantAlreadyExists
        | ErrorCode::RunNotHeld
        | ErrorCode::RunAlreadyApproved
        | ErrorCode::RunSuperseded
        | ErrorCode::WebhookInFlight
        | ErrorCode::NoWebhookUrl
        | ErrorCode::DeadLetterRefused
        | ErrorCode::DeadLetterSuperseded
        | ErrorCode::ConnectionReplaced
        | ErrorCode::DuplicateIntegration
        | ErrorCode::DuplicateEnvironment
        | ErrorCode::DuplicateApiKey
        | ErrorCode::MultipleWebhookSigningKeys
        | ErrorCode::DuplicateDashboardAccount
        | ErrorCode::LastAdministrator
        | ErrorCode::IdempotencyKeyReused
        | ErrorCode::IdempotencyKeyInUse
        | ErrorCode::ConflictingDeployment
        | ErrorCode::CapabilitiesNotAccepted
        | ErrorCode::DeploymentNotRestorable
        | ErrorCode::HostsNotReady => &[StatusCode::CONFLICT],
        ErrorCode::ScriptAborted | ErrorCode::InvalidAccountLink => &[StatusCode::GONE],
        ErrorCode::PayloadTooLarge => &[StatusCode::PAYLOAD_TOO_LARGE],
        ErrorCode::InvalidContentType | ErrorCode::InvalidContentEncoding => {
            &[StatusCode::UNSUPPORTED_MEDIA_TYPE]
        }
        ErrorCode::CredentialsUnavailable | ErrorCode::ScriptHttpError => &[StatusCode::FAILED_DEPENDENCY],
        ErrorCode::TooManyWebhooks
        | ErrorCode::TooManyReaders
        | ErrorCode::TooManyRequest
        | ErrorCode::RateLimited
        | ErrorCode::SignInLocked => &[StatusCode::TOO_MANY_REQUESTS],
        ErrorCode::HostLost | ErrorCode::InternalServerError => &[StatusCode::INTERNAL_SERVER_ERROR],
        ErrorCode::NotImplemented => &[StatusCode::NOT_IMPLEMENTED],
        ErrorCode::RedirectNotAllowed | ErrorCode::TooManyRedirects | ErrorCode::UpstreamFailed => {
            &[StatusCode::BAD_GATEWAY]
        }
        ErrorCode::WebhookSecretMissing
        | ErrorCode::IntakeBusy
        | ErrorCode::TooManySockets
        | ErrorCode::TooManyConnections
        | ErrorCode::TooManyBodies => &[StatusCode::SERVICE_UNAVAILABLE],
        ErrorCode::UpstreamTimeout => &[StatusCode::GATEWAY_TIMEOUT],
        ErrorCode::MassDeletionHeld
        | ErrorCode::NoProgress
        | ErrorCode::RefreshTokenExternalError
        | ErrorCode::CredentialsRejected
        | ErrorCode::ProviderAccessDenied
        | ErrorCode::ScriptCancelled
        | ErrorCode::SyncScriptFailure
        | ErrorCode::WebhookScriptFailure
        | ErrorCode::LifecycleScriptFailure => &[],
    }
}

/// The usual status of a code.
pub fn status(code: ErrorCode) -> StatusCode {
    statuses(code).first().copied().unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}
