//! The stable codes of errors, with their meanings and remedies.
//!
//! `docs/errors.md` and the OpenAPI document are generated from this list. A code is public and is never renamed.

use serde::{Deserialize, Serialize};
use strum::{Display, EnumMessage, EnumString, IntoStaticStr, VariantArray};

/// The code of an error, as clients see it: `unknown_connection`.
///
/// The documentation comment of a variant is the code's meaning. Its `message` is the remedy.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    Display,
    EnumMessage,
    EnumString,
    IntoStaticStr,
    VariantArray,
    Serialize,
    Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum ErrorCode {
    /// The request has no `Authorization` header.
    #[strum(message = "Send `Authorization: Bearer <secret key>`.")]
    MissingAuthHeader,
    /// The `Authorization` header contains no key, or uses a scheme other than `Bearer`.
    #[strum(message = "Send `Authorization: Bearer <secret key>`.")]
    MalformedAuthHeader,
    /// The value is not a secret key. A key that begins with `sk_syncline_` has a wrong checksum, or the key does not
    /// have 16 to 255 printable characters.
    #[strum(message = "Copy the key again. It was mistyped or cut off.")]
    InvalidSecretKeyFormat,
    /// The secret key was revoked, or belongs to another installation.
    #[strum(message = "Create a key with `syncline keys create`.")]
    UnknownAccount,
    /// The value is not a connect session token.
    #[strum(message = "Use the `token` that `POST /connect/sessions` returned, unchanged.")]
    InvalidConnectSessionTokenFormat,
    /// The connect session has expired (after 30 minutes), was deleted, or never existed.
    #[strum(message = "Create a new session with `POST /connect/sessions`.")]
    UnknownConnectSessionToken,
    /// A connect route was called without `connect_session_token` in the query.
    #[strum(message = "Create a session with `POST /connect/sessions` and pass its token.")]
    MissingPublicKey,
    /// A connect route was called with a public key, which Syncline does not support.
    #[strum(message = "Create a session with `POST /connect/sessions` and pass its token.")]
    DeprecatedAuthentication,
    /// The connect session does not allow this integration.
    #[strum(message = "List the integration in the session's `allowed_integrations`.")]
    IntegrationNotAllowed,
    /// The secret key lacks the scope that the message names.
    #[strum(message = "Use a key that has the scope.")]
    Forbidden,
    /// A query parameter is unknown, missing or malformed.
    #[strum(message = "See `errors` for each parameter.")]
    InvalidQueryParams,
    /// `Connection-Id`, `Provider-Config-Key` or another header is missing or malformed.
    #[strum(message = "See `errors` for each header.")]
    InvalidHeaders,
    /// A part of the path is malformed.
    #[strum(message = "See `errors` for each part.")]
    InvalidUriParams,
    /// The body is valid JSON but does not have the form that the route accepts, or the body arrived incomplete.
    #[strum(message = "See `errors` for each field.")]
    InvalidBody,
    /// The body is not valid JSON.
    #[strum(message = "Correct the syntax at the place that the message names.")]
    InvalidJson,
    /// The body has a content type that the route does not accept.
    #[strum(message = "Send the content type that the message names.")]
    InvalidContentType,
    /// The body is compressed or otherwise encoded.
    #[strum(message = "Send the body without `Content-Encoding`.")]
    InvalidContentEncoding,
    /// The body is longer than the route accepts: 75 MB for inputs of actions, 4 MB for metadata, settings and lists of
    /// syncs, 256 MB for a bundle, 1 GiB through `/proxy`, 4 KiB for `POST /connect/telemetry`, and 64 KiB for other
    /// routes. For inbound webhooks, see
    /// [Provider webhooks](reference/provider-webhooks.md#responses).
    #[strum(message = "Send a smaller body.")]
    PayloadTooLarge,
    /// The environment has no integration with this unique key.
    #[strum(message = "Create the integration, or deploy a bundle that creates it.")]
    UnknownIntegration,
    /// The catalogue has no such provider.
    #[strum(message = "Correct the slug, or add a provider file (`SYNCLINE_PROVIDERS_DIR`).")]
    UnknownProvider,
    /// The integration has no connection with this id.
    #[strum(
        message = "Check the id and the integration: connection ids are unique within one integration only."
    )]
    UnknownConnection,
    /// The integration's provider uses another auth mode than the one that this route serves.
    #[strum(message = "Use the route for the integration's auth mode.")]
    InvalidAuthMode,
    /// The provider rejected the credentials, they cannot be sent to it, or it could not confirm that they belong to
    /// the named account. Nothing was stored. Imports are not tested and never return this code.
    #[strum(message = "Correct the credentials. The message is meant for the end user.")]
    ConnectionTestFailed,
    /// The provider returned no token and did not say that the credentials are wrong: its answer was not a token, or it
    /// was unreachable. Nothing was stored. With the auth modes `TWO_STEP`, `JWT` and `BILL`, an unreachable provider
    /// is not an error: the connection is stored, and its token is requested when it is first needed.
    #[strum(message = "Try again later. The message contains the provider's answer.")]
    RequestTokenExternalError,
    /// The provider requires requests signed with a consumer key and secret, and neither the integration nor the end
    /// user has supplied them.
    #[strum(message = "Set the integration's credentials, or send `oauth_client_id_override` and \
            `oauth_client_secret_override`.")]
    MissingClientId,
    /// The connection that the session reconnects was deleted while its new credentials were tested. The session is
    /// deleted with the connection, so later requests return `unknown_connect_session_token`.
    #[strum(message = "Create a session for a new connection.")]
    InvalidConnection,
    /// No sync with this name is deployed for the integration.
    #[strum(message = "Correct the name, or deploy the sync.")]
    UnknownSync,
    /// `base` is the default variant and can be neither created nor deleted.
    #[strum(message = "Choose another name.")]
    InvalidVariant,
    /// The connection's sync has no such variant. In a request about all connections: no connection has it.
    #[strum(message = "Create the variant, or correct the name.")]
    UnknownVariant,
    /// The connection's sync already has this variant.
    #[strum(message = "Use it, or choose another name.")]
    SyncVariantAlreadyExists,
    /// The connection's sync already has the maximum number of variants, which the message contains.
    #[strum(message = "Delete variants that you no longer need.")]
    ResourceCapped,
    /// No function with this name, or with this name and type, is deployed for the integration.
    #[strum(message = "Correct the name, or deploy the function.")]
    UnknownFunction,
    /// The connection has no schedule for the named sync.
    #[strum(message = "Use a sync that `GET /sync/status` lists.")]
    NoSyncsFound,
    /// No function of the integration declares this model, and the connection has no records of it.
    #[strum(message = "Correct the name. A declared model without records returns an empty page instead.")]
    UnknownModel,
    /// The connection's credentials could not be refreshed. Status 400: the provider rejected the refresh. Status 424:
    /// the provider could not be reached, or has rejected too many refreshes. `payload` contains the connection
    /// without its credentials.
    #[strum(
        message = "For 424, try again after the time in the message. For 400, let the end user reconnect."
    )]
    InvalidCredentials,
    /// A request through `/proxy` was not sent, because the connection's credentials could not be refreshed or read.
    #[strum(
        message = "Check `GET /connections/{connection_id}`. If the error persists, let the end user reconnect."
    )]
    CredentialsUnavailable,
    /// A request through `/proxy` cannot be sent: its path leaves the provider's base URL, it sets a header that only
    /// the host sets, its method is `CONNECT` or `TRACE`, or the provider has no base URL for this connection.
    #[strum(message = "Correct what the message names.")]
    InvalidProxyRequest,
    /// A request through `/proxy` names a full URL whose host is neither the provider's nor in the integration's
    /// `allow_hosts`, or that does not use TLS.
    #[strum(message = "Send only the path, or add the host to `allow_hosts`.")]
    HostNotAllowed,
    /// The host of a request through `/proxy` resolves to private addresses only.
    #[strum(message = "An operator can allow them with `SYNCLINE_EGRESS_ALLOW`.")]
    AddressNotAllowed,
    /// The host in `Base-Url-Override` is neither the provider's nor in the integration's `allow_hosts`.
    #[strum(message = "Omit the header, or add the host to `allow_hosts`.")]
    BaseUrlOverrideNotAllowed,
    /// The client stopped sending the body for too long; or the whole body did not arrive within 10 seconds, which is
    /// the limit for inbound webhooks and `POST /connect/telemetry`.
    #[strum(
        message = "Send the request again. Operators configure `SYNCLINE_CLIENT_TIMEOUT_SECONDS` and, for `/proxy`, \
            `SYNCLINE_PROXY_TIMEOUT_SECONDS`."
    )]
    BodyTimeout,
    /// The provider redirected a request through `/proxy` to a host that is not allowed, or redirected a request whose
    /// body was too long to be sent twice.
    #[strum(message = "Call the final address directly. The message names the host.")]
    RedirectNotAllowed,
    /// The provider redirected a request through `/proxy` more than five times.
    #[strum(message = "Call the final address directly.")]
    TooManyRedirects,
    /// A request through `/proxy` failed without an answer from the provider: no connection, a TLS error, or the
    /// connection broke.
    #[strum(message = "Try again, or send the `Retries` header.")]
    UpstreamFailed,
    /// The provider did not answer a request through `/proxy` in time.
    #[strum(message = "Try again later. Operators configure `SYNCLINE_PROXY_TIMEOUT_SECONDS`.")]
    UpstreamTimeout,
    /// The cursor was not issued by this service, or belongs to another connection, model or variant.
    #[strum(message = "Omit the cursor to read from the beginning.")]
    InvalidCursor,
    /// The environment has no run with this id, or the run is older than the retention period.
    #[strum(message = "Take the id from `GET /runs`.")]
    UnknownRun,
    /// The run has no recording, or it was deleted after its retention period.
    #[strum(message = "Choose the runs to record with `PUT /sync/recording`.")]
    UnknownRecording,
    /// The run holds no deletions for approval.
    #[strum(message = "Approve only runs that ended with `mass_deletion_held`.")]
    RunNotHeld,
    /// The deletions of this run were approved before.
    #[strum(message = "No action is needed: the deletions are being applied.")]
    RunAlreadyApproved,
    /// A later run of the sync has succeeded, has held deletions itself, or has run without `track_deletes`. Or the
    /// records were deleted.
    #[strum(message = "Look at the latest run.")]
    RunSuperseded,
    /// The environment has no outbound delivery or inbound webhook with this id, or it is older than the retention
    /// period.
    #[strum(message = "Take the id from `GET /webhooks/deliveries` or `GET /webhooks/received`.")]
    UnknownWebhook,
    /// The webhook is being sent or processed at this moment, so it cannot be sent again yet; or it is a handshake,
    /// which is not processed.
    #[strum(message = "Try again in a few seconds. A handshake cannot be processed again.")]
    WebhookInFlight,
    /// The catalogue has no signature scheme for webhooks of the integration's provider.
    #[strum(
        message = "Add a `[webhook]` table to a [provider file](reference/provider-files.md#webhooks) of your own."
    )]
    WebhooksNotTaken,
    /// A request to a provider's webhook URL has no signature. The message says where the signature is expected.
    #[strum(
        message = "Enable signatures at the provider. Ignore it if the provider did not send the request."
    )]
    MissingWebhookSignature,
    /// The signature was not made with the integration's secret.
    #[strum(message = "Set the secret that the provider shows. If the provider signs the URL, check \
            `SYNCLINE_PUBLIC_URL`.")]
    InvalidWebhookSignature,
    /// The signature is too old, or its time is ahead of the host's clock.
    #[strum(message = "Check the host's clock. Otherwise the request is a replay.")]
    ExpiredWebhookSignature,
    /// The integration has no secret to verify webhooks with, or its secret is not a key of the right kind. The
    /// provider sends the webhook again later.
    #[strum(
        message = "Set `custom.webhook_secret` or `credentials.webhook_secret` of the integration. For Facebook and \
            Strava, this is also the verify token."
    )]
    WebhookSecretMissing,
    /// A `GET` request to a webhook URL is not a handshake of this provider, or it lacks the value to echo.
    #[strum(message = "Send webhooks with `POST`.")]
    UnknownHandshake,
    /// The host already buffers the maximum number of webhooks for this integration.
    #[strum(message = "Send the webhook again after `Retry-After` seconds. Providers do so on their own.")]
    TooManyWebhooks,
    /// The host already buffers the maximum number of webhooks, or its database does not accept them.
    #[strum(message = "Send the webhook again after `Retry-After` seconds. Providers do so on their own.")]
    IntakeBusy,
    /// The setting that contained the webhook's URL is now empty, or the URL answered 410.
    #[strum(message = "Set the URL, then send the webhook again.")]
    NoWebhookUrl,
    /// The environment has no dead letter with this id. A later save or deletion of the record removes it, and so does
    /// the retention period.
    #[strum(message = "List the dead letters with `GET /dead-letters`.")]
    UnknownDeadLetter,
    /// The record does not match the deployed version of its model.
    #[strum(message = "Deploy a model that accepts the record, or drop the dead letter.")]
    DeadLetterRefused,
    /// The record was saved or deleted after it was set aside, so replaying it would restore an older version.
    #[strum(message = "Drop the dead letter.")]
    DeadLetterSuperseded,
    /// The integration has no app credentials.
    #[strum(message = "Set them with `PATCH /integrations/{unique_key}`.")]
    ProviderConfigErr,
    /// A value that the provider requires is missing or malformed, or the provider returned one that is not valid.
    #[strum(message = "Correct the value that the message names.")]
    InvalidConnectionConfig,
    /// The OAuth callback was already used, came more than an hour after the start, or its session was deleted.
    #[strum(message = "Start the authorization again.")]
    StateErr,
    /// The browser that returned from the provider is not the one that started the authorization.
    #[strum(message = "Start the authorization again in one browser, with cookies enabled.")]
    StateCookieErr,
    /// The end user did not grant access.
    #[strum(message = "If this was a mistake, start the authorization again.")]
    AccessDenied,
    /// The provider redirected the end user back with an error, without the required parameters, or with another
    /// issuer than the expected one.
    #[strum(message = "See the provider's error in the message.")]
    CallbackErr,
    /// The provider returned no token.
    #[strum(
        message = "Check the app's credentials and its callback URL. The message contains the provider's answer."
    )]
    TokenErr,
    /// The connection was rejected: the provider did not accept the new credentials, did not confirm that they belong
    /// to the named account, or the integration's validation function failed with `message`. A rejected new connection
    /// is not stored. A reconnected connection that a validation function rejects is kept, with an authentication
    /// error.
    #[strum(
        message = "Connect again. If the error persists, check the app's scopes and the requirements of the validation function."
    )]
    ConnectionValidationFailed,
    /// Another request replaced or deleted the connection while a function validated it. The other request's
    /// credentials are kept if they pass validation.
    #[strum(message = "Get the connection to see which credentials it has. Import yours again if necessary.")]
    ConnectionReplaced,
    /// The connection to reconnect was deleted while the end user authorized it at the provider.
    #[strum(message = "Create a session for a new connection.")]
    ConnectionNotFound,
    /// A limit of open WebSockets is reached: 5,000 on the host, or 500 of one client address.
    #[strum(
        message = "Try again in a moment. Operators configure `SYNCLINE_MAX_WEBSOCKETS_PER_ADDRESS` and, behind a \
        reverse proxy, `SYNCLINE_TRUSTED_PROXIES`."
    )]
    TooManySockets,
    /// A browser called `/mcp` from a page of another site.
    #[strum(message = "Call `/mcp` from a program, or from a page on this host's own origin.")]
    OriginNotAllowed,
    /// The host's limit of network connections is reached: of all clients, or of the client's address.
    #[strum(
        message = "Try again after `Retry-After` seconds, and use one connection for several requests. Operators \
        configure `SYNCLINE_MAX_CLIENT_CONNECTIONS` and `SYNCLINE_MAX_CLIENT_CONNECTIONS_PER_ADDRESS`."
    )]
    TooManyConnections,
    /// The host's memory for request bodies is in use, or the environment's share of it.
    #[strum(
        message = "Try again after `Retry-After` seconds. Operators configure `SYNCLINE_MAX_BODY_MEMORY_BYTES`."
    )]
    TooManyBodies,
    /// The secret key or its environment has sent more requests per minute than the operator allows.
    #[strum(message = "Wait for the number of seconds in `Retry-After`.")]
    TooManyRequest,
    /// The host's limit of concurrent change readers is reached.
    #[strum(message = "Try again after `Retry-After` seconds, or use another host.")]
    TooManyReaders,
    /// An integration with this unique key exists.
    #[strum(message = "Choose another unique key.")]
    DuplicateIntegration,
    /// There is no environment with this id.
    #[strum(message = "List the environments with `syncline env list`.")]
    UnknownEnvironment,
    /// An environment with this name exists.
    #[strum(message = "Choose another name.")]
    DuplicateEnvironment,
    /// The environment `dev` cannot be deleted: every host creates it at its start.
    #[strum(message = "Delete its contents instead.")]
    CannotDeleteDefaultEnvironment,
    /// The environment has no valid secret key with this id.
    #[strum(message = "List the keys with `syncline keys list`. The key may be revoked already.")]
    UnknownApiKey,
    /// The environment has a valid secret key with this name.
    #[strum(message = "Choose another name, or revoke the other key.")]
    DuplicateApiKey,
    /// The webhook signing key was rotated less than 24 hours ago, and the previous key still signs.
    #[strum(
        message = "Wait until 24 hours have passed, or replace both keys at once with `syncline env rotate-signing-key --now`."
    )]
    MultipleWebhookSigningKeys,
    /// No action with this name is deployed for the integration.
    #[strum(message = "Correct the name, or deploy the action.")]
    UnknownAction,
    /// The environment has no asynchronous action with this id, or its result has expired.
    #[strum(message = "Use the `statusUrl` that was returned, within 24 hours.")]
    UnknownJob,
    /// The asynchronous action has no result yet. `payload.state` is `queued` or `running`.
    #[strum(message = "Ask again after `Retry-After` seconds.")]
    ActionNotFinished,
    /// The `Idempotency-Key` was already used for another input of this connection and action, or with another value of
    /// `X-Async`.
    #[strum(message = "Use a new key for each request.")]
    IdempotencyKeyReused,
    /// The first request with this `Idempotency-Key` is still in progress.
    #[strum(message = "Send the request again after `Retry-After` seconds.")]
    IdempotencyKeyInUse,
    /// The input does not match the action's input model. The function did not run.
    #[strum(message = "Correct the fields that `errors` lists.")]
    InvalidActionInput,
    /// The function ran, but its output does not match its output model, or is not JSON.
    #[strum(message = "Correct the function or the model. See `errors` for each field.")]
    InvalidActionOutput,
    /// The function returned an error, whose message is `message`. `payload` contains its details. Without details,
    /// `payload` contains the function's own `code` and `message`.
    #[strum(message = "Find the cause with `syncline runs logs ID`.")]
    ActionScriptRuntimeError,
    /// The provider answered with an error that the function did not handle. `upstream` contains the answer, with at
    /// most the first 10,000 bytes of its body. `payload` contains the body or, if it has one, the body's member
    /// `payload`. A body that was cut off is text, even if it was JSON. To return more, [handle the response in the
    /// function](how-to/write-functions-in-rust.md#errors).
    #[strum(
        message = "See the provider's answer. A 401 means that the provider rejected the connection's credentials."
    )]
    ScriptHttpError,
    /// The function crashed: it panicked or executed an invalid WebAssembly operation.
    #[strum(message = "Correct the function. The run's log contains a backtrace.")]
    ScriptInternalError,
    /// The function exceeded its limit `wall`. `payload` is `{"limit": "wall"}`.
    #[strum(
        message = "Try again, or raise the limit in `syncline.toml`. The maximum for an action is 15 minutes."
    )]
    ExecutionTimeout,
    /// The function exceeded another limit. `payload` is `{"limit": NAME}`: `cpu`, `memory`, `table`, `stack`, `log`,
    /// `output`, `requests`, `records` or `stream`.
    #[strum(
        message = "Reduce the function's work, or raise the limit in `syncline.toml`. `table` and `stack` are fixed. An operator can raise `stream` with `SYNCLINE_MAX_STREAM_RECORDS`."
    )]
    LimitExceeded,
    /// The provider is rate limiting this connection or its integration for longer than the function or `/proxy` can
    /// wait.
    #[strum(message = "Try again after `Retry-After` seconds.")]
    RateLimited,
    /// An asynchronous action was given up, because five hosts stopped while they ran it. If a sync's run in state
    /// `lost` has this code, its host did not renew the lease, and another attempt continues from the checkpoint.
    #[strum(message = "Check the logs of those hosts: the function may be the cause.")]
    HostLost,
    /// A later attempt of the same run has taken over (syncs only), or the connection was deleted while its action ran.
    #[strum(
        message = "No action is needed: a later attempt does the work, or the connection no longer exists."
    )]
    ScriptAborted,
    /// The body is not a complete bundle, or it was modified.
    #[strum(message = "Build the bundle again and send it unchanged.")]
    InvalidBundle,
    /// The bundle's `syncline.toml` has errors, or does not match its components. `payload.mistakes` contains each
    /// error with file, line, column and, usually, help.
    #[strum(message = "Correct the errors. `syncline check` finds them before a deployment.")]
    InvalidSyncConfig,
    /// The bundle conflicts with the environment. Either an integration has another provider there or was renamed, or
    /// a function or model belongs to another bundle. Or another bundle sets another `base_url` for the integration.
    #[strum(message = "Resolve the conflict that the message names.")]
    ConflictingDeployment,
    /// The bundle asks for capabilities that the active version does not have. `payload.new_capabilities` lists them.
    #[strum(
        message = "Check the capabilities, then deploy with `--accept-capabilities` or, over the API, `accept_capabilities=true`."
    )]
    CapabilitiesNotAccepted,
    /// The environment requires signed bundles, and this one has no signature.
    #[strum(
        message = "Sign the bundle with minisign, and deploy it with `--signature`, or send the signature in `Bundle-Signature`."
    )]
    BundleSignatureRequired,
    /// The signature of the bundle is malformed, does not belong to it, or was made with a key that the environment does
    /// not trust.
    #[strum(message = "Sign the bundle again with a key that `syncline env bundle-keys list` shows.")]
    InvalidBundleSignature,
    /// The environment has no such bundle or no such version of it.
    #[strum(message = "List the versions with `GET /deployments`.")]
    UnknownDeployment,
    /// The version was never active, or was deployed before hosts stored bundles.
    #[strum(message = "Deploy the bundle's file instead.")]
    DeploymentNotRestorable,
    /// A host could not compile the bundle, or did not within five minutes. The previous version stays active.
    #[strum(message = "Check the hosts' logs, then deploy again.")]
    HostsNotReady,
    /// There is no route with this path.
    #[strum(message = "Compare the path with `/openapi.json`.")]
    NotFound,
    /// The route does not accept this method. The `Allow` header lists those that it accepts.
    #[strum(message = "Use one of the listed methods.")]
    MethodNotAllowed,
    /// This version does not offer `POST /integrations/quickstart`, and neither `GET
    /// /integrations/{unique_key}/functions/{name}/code` nor `DELETE /integrations/{unique_key}/functions/{name}`.
    #[strum(message = "Do not use these routes.")]
    NotImplemented,
    /// An error occurred in the host. The cause is in the host's log and never in the answer.
    #[strum(
        message = "Try again. If the error persists, search the host's log for the id in the header `X-Request-Id` of the response."
    )]
    InternalServerError,
    /// More than half of 100 or more live records were missing from a full sync (both numbers are configurable).
    /// Nothing was deleted. `details` contains `model`, `unseen` and `live`.
    #[strum(
        message = "Approve the deletions, or correct the cause and trigger the sync: see [Approve held deletions](how-to/approve-held-deletions.md)."
    )]
    MassDeletionHeld,
    /// The provider rejected a refresh of the connection's credentials, or could not be reached; or the credentials
    /// have expired and have no refresh token.
    #[strum(
        message = "Let the end user reconnect if the error persists. The message contains the provider's answer."
    )]
    RefreshTokenExternalError,
    /// The function failed, and the provider rejected the connection's credentials: the last request that carried them
    /// was answered with 401, after a refresh if they can be refreshed. Runs and connections have this code. The answer
    /// of an action keeps `script_http_error`, or the code of the function's own error.
    #[strum(
        message = "Let the end user reconnect. The connection's error disappears when a later request with its credentials succeeds."
    )]
    CredentialsRejected,
    /// The provider answered a request of a sync with 403, and the sync failed because of it. The connection has this
    /// code; the run keeps `script_http_error`.
    #[strum(
        message = "Check the permissions and scopes of the account at the provider, then let the end user reconnect. The error disappears when the sync succeeds."
    )]
    ProviderAccessDenied,
    /// The sync returned an error, whose message is `message`. `details` contains its details. Without details,
    /// `details` contains the function's own `code` and `message`.
    #[strum(
        message = "Find the cause with `syncline runs logs ID`. The sync is retried after 10, 20 and 40 seconds, and then at each scheduled run."
    )]
    SyncScriptFailure,
    /// The function that handles a provider's webhook returned an error, as described for `sync_script_failure`.
    #[strum(
        message = "Find the cause with `syncline runs logs ID`. The function is called again with growing delays."
    )]
    WebhookScriptFailure,
    /// The function that handles an event of a connection returned an error, as described for `sync_script_failure`.
    #[strum(message = "Find the cause with `syncline runs logs ID`.")]
    LifecycleScriptFailure,
    /// The sync makes no progress. Either several attempts in a row (five by default) were interrupted before they
    /// moved the checkpoint or changed a record. Or one attempt committed nothing new for longer than its limit
    /// `idle`.
    #[strum(
        message = "Commit smaller batches with a checkpoint each, or raise the limits. The sync is retried with \
            growing delays of up to a day; a trigger runs it at once."
    )]
    NoProgress,
    /// The run was stopped. Its host shut down or does not know the sync yet, a reset was requested, its connection or
    /// sync was deleted, or the caller of an action disconnected.
    #[strum(
        message = "No action is needed: the host runs remaining work again, except for an action whose caller disconnected."
    )]
    ScriptCancelled,
    /// The page of the dashboard needs a signed-in account. The browser has no session, or its session has ended.
    #[strum(message = "Sign in.")]
    SignInRequired,
    /// The email address or the password is wrong.
    #[strum(message = "Check both. An administrator can create a link with which you choose a new password.")]
    SignInFailed,
    /// Too many attempts to sign in with this address have failed.
    #[strum(message = "Wait for the time that the message states. It doubles with each further failure.")]
    SignInLocked,
    /// A form of the dashboard was sent by another site, or by a page that was opened in an earlier session.
    #[strum(message = "Reload the page and submit the form again.")]
    CrossSiteRequest,
    /// The link to create an account or to choose a password was used, has expired or never existed.
    #[strum(
        message = "Ask an administrator for a new link. If the dashboard has no account yet, restart the host: it prints a new link."
    )]
    InvalidAccountLink,
    /// The account of the dashboard does not exist.
    #[strum(message = "Reload the list of accounts. Another administrator may have deleted it.")]
    UnknownDashboardAccount,
    /// The session of the dashboard does not exist.
    #[strum(message = "Reload the list of sessions. The session may have ended.")]
    UnknownDashboardSession,
    /// An account of the dashboard with this email address exists.
    #[strum(message = "Use another address, or change the existing account.")]
    DuplicateDashboardAccount,
    /// The change would leave the dashboard without an administrator who can sign in.
    #[strum(message = "Make another account an administrator first.")]
    LastAdministrator,
}

impl ErrorCode {
    /// The text on the wire and in the database.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Returns the meaning of the code, as one line of Markdown.
    pub fn meaning(self) -> String {
        self.get_documentation().unwrap_or_default().lines().collect::<Vec<_>>().join(" ")
    }

    /// Returns the remedy for the error, as one line of Markdown.
    pub fn remedy(self) -> &'static str {
        self.get_message().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_meaning_and_a_remedy_in_full_sentences() {
        for code in ErrorCode::VARIANTS {
            for text in [code.meaning().as_str(), code.remedy()] {
                assert!(
                    text.ends_with('.') && !text.contains('\n') && !text.contains("  "),
                    "{code}: {text}"
                );
            }
        }
    }

    #[test]
    fn codes_are_converted_to_and_from_text() {
        assert_eq!(ErrorCode::UnknownConnection.to_string(), "unknown_connection");
        assert_eq!("mass_deletion_held".parse(), Ok(ErrorCode::MassDeletionHeld));
        let json = serde_json::to_string(&ErrorCode::InvalidJson).unwrap();
        assert_eq!(json, "\"invalid_json\"");
        assert_eq!(serde_json::from_str::<ErrorCode>(&json).unwrap(), ErrorCode::InvalidJson);
    }
}
