//! Invokes an action and checks its output against its model.

use std::sync::Arc;

use crate::functions::DeployedFunction;
use crate::invoker::Invoker;
use crate::invoker::error::ActionError;
use crate::invoker::invocation::Invocation;
use syncline_model::{Invalid, Malformed, Problem, Shape};
use syncline_sandbox::{Finished, Usage};

impl Invoker {
    pub(crate) async fn invoke_action(
        self: &Arc<Self>,
        invocation: Invocation<'_>,
    ) -> (Result<Option<String>, ActionError>, Usage) {
        let function = Arc::clone(invocation.function);
        let Finished { result, usage } = self.invoke(invocation).await;
        let result = match result {
            Err(error) => Err(ActionError::Function(error)),
            Ok(output) => checked_output(&function, output),
        };
        (result, usage)
    }
}

/// Checks the output of an action against its model.
pub(crate) fn checked_output(
    function: &DeployedFunction,
    output: Option<String>,
) -> Result<Option<String>, ActionError> {
    match function.output() {
        Some(shape) => check(shape, output.as_deref()).map(|()| output).map_err(ActionError::Output),
        None => checked_json(output),
    }
}

/// Checks a value against a model. A missing value counts as `null`.
pub(crate) fn check(shape: &Shape, json: Option<&str>) -> Result<(), Vec<Problem>> {
    shape.check(json.unwrap_or("null")).map_err(|invalid| match invalid {
        Invalid::Malformed(malformed) => vec![malformed_problem(malformed.to_string())],
        Invalid::Problems(problems) => problems,
    })
}

/// Checks that the output is JSON. Without an output model, an action may return any JSON value.
fn checked_json(output: Option<String>) -> Result<Option<String>, ActionError> {
    if let Some(text) = &output
        && let Err(error) = serde_json::from_str::<&serde_json::value::RawValue>(text)
    {
        return Err(ActionError::Output(vec![malformed_problem(format!("it is not JSON: {error}"))]));
    }
    Ok(output)
}

/// The error of an input that cannot be parsed.
pub(crate) fn malformed_input(problem: &Malformed) -> ActionError {
    ActionError::Input(vec![malformed_problem(problem.to_string())])
}

fn malformed_problem(problem: String) -> Problem {
    Problem { path: String::new(), problem }
}
