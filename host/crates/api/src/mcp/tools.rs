//! The actions of a connection as tools of the Model Context Protocol.

use std::sync::{Arc, OnceLock};

use rmcp::handler::server::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, CustomRequest, CustomResult,
    ErrorData, Implementation, ListToolsResult, PaginatedRequestParams, ServerCapabilities, ServerConfig,
    Tool,
};
use rmcp::service::{RequestContext, RoleServer};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use uuid::Uuid;

use super::super::App;
use super::super::error::ApiError;
use syncline_auth::Environment;
use syncline_config::FunctionKind;
use syncline_engine::{ActionError, ActionTool, ConnectionRoute, DeployedFunction};
use syncline_types::ids::FunctionName;

/// The actions of one connection, for one request.
#[derive(Clone)]
pub struct ConnectionTools {
    app: App,
    environment: Arc<Environment>,
    connection: Arc<ConnectionRoute>,
    /// The arguments of the call, not parsed.
    arguments: Option<Arc<RawValue>>,
    structured: Structured,
}

/// The `structuredContent` of a result, as the function returned it. The value type of `rmcp` would round numbers, so it
/// gets a placeholder, which is replaced in the text of the response.
#[derive(Clone, Default)]
pub struct Structured(Arc<OnceLock<(String, String)>>);

impl Structured {
    /// Stores the text of an object and returns its placeholder: an object with an unpredictable name.
    fn placeholder(&self, output: &str) -> Value {
        let stand_in = json!({ Uuid::new_v4().to_string(): null });
        // Line breaks would end a line of an event stream. In JSON they are equivalent to spaces.
        let stored = (stand_in.to_string(), output.replace(['\r', '\n'], " "));
        let _result = self.0.set(stored);
        stand_in
    }

    /// Replaces the placeholder in the text of a response. `None` if the text has no placeholder.
    pub fn put_into(&self, answer: &str) -> Option<String> {
        let (stand_in, output) = self.0.get()?;
        let (before, after) = answer.split_once(stand_in)?;
        Some([before, output, after].concat())
    }

    pub fn is_needed(&self) -> bool {
        self.0.get().is_some()
    }
}

impl ConnectionTools {
    pub fn new(
        app: App,
        environment: Arc<Environment>,
        connection: Arc<ConnectionRoute>,
        arguments: Option<Box<RawValue>>,
        structured: Structured,
    ) -> Self {
        Self { app, environment, connection, arguments: arguments.map(Arc::from), structured }
    }

    /// Finds an action by name, even if another host has just deployed it.
    async fn find(&self, name: &str) -> Result<Option<Arc<DeployedFunction>>, ErrorData> {
        let Ok(name) = name.parse::<FunctionName>() else { return Ok(None) };
        let ConnectionRoute { environment, integration, .. } = *self.connection;
        let functions = &self.app.functions;
        functions
            .find_deployed(environment, integration, FunctionKind::Action, &name)
            .await
            .map_err(ApiError::Internal)
            .map_err(internal_error)
    }

    /// Runs the action like `POST /action/trigger`. The result tells the caller why it failed.
    async fn run(&self, action: &DeployedFunction, tool: &ActionTool) -> Result<CallToolResult, ErrorData> {
        let input = tool.input_of(self.arguments.as_deref()).map_err(|error| {
            ErrorData::invalid_params(
                format!("the arguments of `{}` are invalid: {error}", action.name),
                None,
            )
        })?;
        let ran = self.app.actions.run(&self.environment, &self.connection, &action.name, input).await;
        match ran {
            Ok(None) => Ok(CallToolResult::success(Vec::new())),
            Ok(Some(output)) => {
                let structured = tool.output.as_ref().map(|_| self.structured.placeholder(&output));
                let mut result = CallToolResult::success(vec![ContentBlock::text(output)]);
                result.structured_content = structured;
                Ok(result)
            }
            Err(error) if error.host_failure().is_some() => Err(internal_error(error)),
            Err(error) => Ok(failed(&error)),
        }
    }
}

/// An internal error.
fn internal_error(error: impl Into<ApiError>) -> ErrorData {
    let (_, _, message) = error.into().into_client_error();
    ErrorData::internal_error(message, None)
}

/// The message of the function and, for programs, the details that `/action/trigger` returns.
fn failed(error: &ActionError) -> CallToolResult {
    let mut details = json!({ "code": error.code() });
    for (name, detail) in [("payload", error.payload()), ("upstream", error.upstream())] {
        if let Some(detail) = detail {
            details[name] = detail;
        }
    }
    CallToolResult::error(vec![
        ContentBlock::text(error.to_string()),
        ContentBlock::text(details.to_string()),
    ])
}

fn described(action: &DeployedFunction, tool: &ActionTool) -> Tool {
    let description = tool.description.clone().map(Into::into);
    let mut described = Tool::new_with_raw(action.name.to_string(), description, Arc::clone(&tool.input));
    described.output_schema = tool.output.clone();
    described
}

impl ServerHandler for ConnectionTools {
    fn get_info(&self) -> ServerConfig {
        let ConnectionRoute { integration_key, connection_id, .. } = &*self.connection;
        let mut info = ServerConfig::new(ServerCapabilities::builder().enable_tools().build());
        info.server_info = Implementation::new("syncline", env!("CARGO_PKG_VERSION")).with_title("Syncline");
        info.instructions = Some(format!(
            "Each tool is an action of the integration `{integration_key}` and acts on the account of its connection \
             `{connection_id}`."
        ));
        info
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let ConnectionRoute { environment, integration, .. } = *self.connection;
        let functions = &self.app.functions;
        functions.catch_up(environment).await.map_err(ApiError::Internal).map_err(internal_error)?;
        let actions = functions.actions_of(integration);
        let tools = actions.iter().filter_map(|action| Some(described(action, action.tool()?)));
        Ok(ListToolsResult::with_all_items(tools.collect()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        let name: FunctionName = name.parse().ok()?;
        let action = self.app.functions.find_action(self.connection.integration, &name)?;
        Some(described(&action, action.tool()?))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let action = self.find(&request.name).await?;
        let Some((action, tool)) = action.as_ref().and_then(|action| Some((action, action.tool()?))) else {
            let integration = &self.connection.integration_key;
            let message = format!(
                "tool `{}` does not exist: integration `{integration}` has no such action; `tools/list` lists all tools",
                request.name
            );
            return Err(ErrorData::invalid_params(message, None));
        };
        tokio::select! {
            // The caller has disconnected. Dropping the run stops the function.
            () = context.ct.cancelled() => Err(ErrorData::internal_error("the call was cancelled", None)),
            result = self.run(action, tool) => Ok(CallToolResponse::from(result?)),
        }
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        // A known method arrives here if its parameters are invalid.
        const KNOWN: [&str; 3] = ["initialize", "tools/list", "tools/call"];
        let CustomRequest { method, .. } = request;
        if KNOWN.contains(&&*method) {
            let message = format!("the `params` of `{method}` are invalid");
            return Err(ErrorData::invalid_params(message, None));
        }
        let message =
            format!("method `{method}` is not supported; supported methods are {}", KNOWN.join(", "));
        Err(ErrorData::new(rmcp::model::ErrorCode::METHOD_NOT_FOUND, message, None))
    }
}
