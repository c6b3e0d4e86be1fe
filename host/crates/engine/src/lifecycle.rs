//! Lifecycle functions: they validate a connection, and run after its creation and before its deletion.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::connections::route::ConnectionRoute;
use crate::functions::{DeployedFunction, FunctionSpec, Functions, StoredFunction};
use crate::invoker::Invoker;
use crate::invoker::error::function_run_error;
use crate::invoker::invocation::Invocation;
use crate::invoker::recording::Recording;
use syncline_auth::{Environment, Environments};
use syncline_config::LifecycleEvent;
use syncline_sandbox::{Finished, FunctionError, Interrupt, PriorityClass, RunInfo};
use syncline_store::connections::{self, Connection};
use syncline_store::function_jobs::{self, NewJob};
use syncline_store::{Store, deployments, hosts};
use syncline_types::functions::FunctionKind;
use syncline_types::ids::{ConnectionPk, EnvironmentPk, FunctionName, IntegrationPk, Variant};

/// How long a deletion waits for all of its pre-deletion functions together.
const PRE_DELETION_TIMEOUT: Duration = Duration::from_secs(30);
/// For how many connections pre-deletion functions run concurrently, and how many connections are read at a time.
const CONCURRENT_CONNECTIONS: usize = 16;
const PAGE: i64 = 500;
/// CLI commands receive no events about finished jobs, so they poll.
const JOB_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Why a connection was not validated.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ValidationError {
    /// A function of the integration rejected the connection with this message.
    #[error("{0}")]
    Refused(String),
    #[error("the connection was replaced or deleted during its validation")]
    Superseded,
    #[error("an internal error interrupted the validation")]
    Host(#[source] anyhow::Error),
}

/// Runs the functions of connection events.
pub struct Lifecycle {
    store: Store,
    environments: Arc<Environments>,
    functions: Arc<Functions>,
    invoker: Arc<Invoker>,
}

impl Lifecycle {
    pub fn new(
        store: Store,
        environments: Arc<Environments>,
        functions: Arc<Functions>,
        invoker: Arc<Invoker>,
    ) -> Arc<Self> {
        Arc::new(Self { store, environments, functions, invoker })
    }

    pub(crate) fn can_validate(&self, connection: &Connection) -> bool {
        let event = LifecycleEvent::ConnectionValidating;
        !self.functions.lifecycle_of(connection.integration, event).is_empty()
    }

    /// Runs the integration's validation functions for a stored connection. The first failure rejects it.
    pub(crate) async fn validate(
        self: &Arc<Self>,
        environment: &Arc<Environment>,
        connection: &Connection,
    ) -> Result<(), ValidationError> {
        let route = Arc::new(ConnectionRoute::from(connection));
        let event = LifecycleEvent::ConnectionValidating;
        for function in self.functions.lifecycle_of(connection.integration, event) {
            match self.run_lifecycle(environment, &route, &function).await {
                Ok(()) => {}
                Err((FunctionError::Interrupted(Interrupt::Host(error)), _)) => {
                    return Err(ValidationError::Host(error));
                }
                Err((FunctionError::Interrupted(Interrupt::Superseded), _)) => {
                    return Err(ValidationError::Superseded);
                }
                // The message is stored with the connection and returned to clients and to the end user.
                Err((_, message)) => return Err(ValidationError::Refused(message)),
            }
        }
        Ok(())
    }

    /// Runs the pre-deletion functions. Neither a failure nor a timeout prevents the deletion.
    pub(crate) async fn run_before_deletion(self: &Arc<Self>, connection: &Arc<ConnectionRoute>) {
        let functions = async {
            self.functions.catch_up(connection.environment).await?;
            self.run_pre_deletion(connection).await;
            Ok(())
        };
        self.wait_before_deletion(functions).await;
    }

    /// Runs the pre-deletion functions for all connections of an integration or of the environment.
    pub(crate) async fn run_before_deletions(
        self: &Arc<Self>,
        environment: EnvironmentPk,
        integration: Option<IntegrationPk>,
    ) {
        let functions = async {
            self.functions.catch_up(environment).await?;
            let mut integrations = self.functions.integrations_with(LifecycleEvent::ConnectionDeleting);
            integrations.retain(|pk| integration.is_none_or(|deleted| *pk == deleted));
            if integrations.is_empty() {
                return Ok(());
            }
            let mut last = ConnectionPk(0);
            loop {
                let mut conn = self.store.connect().await?;
                let page = connections::list_of(&mut conn, environment, &integrations, last, PAGE).await?;
                drop(conn);
                let Some(connection) = page.last() else { return Ok::<_, anyhow::Error>(()) };
                last = connection.pk;
                let routes: Vec<_> = page.iter().map(ConnectionRoute::from).map(Arc::new).collect();
                stream::iter(routes)
                    .for_each_concurrent(CONCURRENT_CONNECTIONS, |connection| {
                        let this = Arc::clone(self);
                        async move { this.run_pre_deletion(&connection).await }
                    })
                    .await;
            }
        };
        self.wait_before_deletion(functions).await;
    }

    async fn wait_before_deletion(&self, functions: impl Future<Output = anyhow::Result<()>>) {
        let problem = match tokio::time::timeout(PRE_DELETION_TIMEOUT, functions).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => format!("{error:#}"),
            Err(_elapsed) => format!("they took longer than {PRE_DELETION_TIMEOUT:?}"),
        };
        tracing::warn!(
            problem,
            "deleting connections although some of their pre-deletion functions have not finished"
        );
    }

    async fn run_pre_deletion(self: &Arc<Self>, connection: &Arc<ConnectionRoute>) {
        for function in
            self.functions.lifecycle_of(connection.integration, LifecycleEvent::ConnectionDeleting)
        {
            match self.environments.get(connection.environment).await {
                Ok(environment) => {
                    // The row of the run contains the error.
                    let _failure = self.run_lifecycle(&environment, connection, &function).await;
                }
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "deleting a connection without running its pre-deletion functions");
                }
            }
        }
    }

    /// Runs one function. Returns its error with the message that is stored in the row of the run.
    async fn run_lifecycle(
        self: &Arc<Self>,
        environment: &Arc<Environment>,
        connection: &Arc<ConnectionRoute>,
        function: &Arc<DeployedFunction>,
    ) -> Result<(), (FunctionError, String)> {
        let id = Uuid::now_v7();
        let recording =
            Recording::begin(&self.invoker, FunctionKind::Lifecycle, id, None, connection, function);
        let invocation = Invocation {
            kind: FunctionKind::Lifecycle,
            run: RunInfo {
                id: id.to_string(),
                variant: Variant::BASE.to_owned(),
                attempt: 1,
                is_full: false,
            },
            environment,
            connection,
            function,
            priority: PriorityClass::Interactive,
            input: function.event_input(),
            signals: Arc::default(),
            live: &recording.live,
        };
        let Finished { result, usage } = self.invoker.invoke(invocation).await;
        let error = result.as_ref().err().map(|error| function_run_error(error, FunctionKind::Lifecycle));
        let run = recording.end_with(error, usage).await;
        let message = run.outcome.error.as_ref().map(|error| error.message.clone());
        self.invoker.run_writer.write(run).await;
        let Err(error) = result else { return Ok(()) };
        let name = &function.name;
        tracing::warn!(run.id = %id, connection.id = connection.pk.0, "lifecycle `{name}` failed");
        Err((error, message.unwrap_or_default()))
    }
}

/// The result of running the pre-deletion functions of an environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PreDeletion {
    Done,
    /// Some functions did not finish in time.
    OutOfTime,
    /// No host is alive to run them.
    NoHost,
}

/// Runs the pre-deletion functions of an environment as jobs on running hosts. For CLI commands, which cannot run
/// functions themselves. Waits for as long as a host waits before a deletion.
pub async fn run_pre_deletion_through_hosts(
    store: &Store,
    environment: EnvironmentPk,
) -> anyhow::Result<PreDeletion> {
    let mut conn = store.connect().await?;
    let functions = list_before_deletion(&mut conn, environment).await?;
    if functions.is_empty() {
        return Ok(PreDeletion::Done);
    }
    if !hosts::is_any_alive(&mut conn).await? {
        return Ok(PreDeletion::NoHost);
    }
    drop(conn);
    let integrations: Vec<IntegrationPk> = functions.iter().map(|(integration, _)| *integration).collect();
    let jobs = async {
        let mut last = ConnectionPk(0);
        loop {
            let mut tx = store.begin().await?;
            let page = connections::list_of(&mut tx, environment, &integrations, last, PAGE).await?;
            let Some(connection) = page.last() else { return Ok::<_, sqlx::Error>(()) };
            last = connection.pk;
            let mut queued = Vec::new();
            for connection in &page {
                let of_integration =
                    functions.iter().filter(|(integration, _)| *integration == connection.integration);
                for (_, function) in of_integration {
                    queued.push(queue(&mut tx, connection, function).await?);
                }
            }
            tx.commit().await?;
            while function_jobs::count_unfinished(&mut *store.connect().await?, &queued).await? > 0 {
                tokio::time::sleep(JOB_POLL_INTERVAL).await;
            }
        }
    };
    match tokio::time::timeout(PRE_DELETION_TIMEOUT, jobs).await {
        Ok(done) => Ok(done.map(|()| PreDeletion::Done)?),
        Err(_elapsed) => Ok(PreDeletion::OutOfTime),
    }
}

async fn list_before_deletion(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
) -> sqlx::Result<Vec<(IntegrationPk, FunctionName)>> {
    let mut functions = Vec::new();
    for function in deployments::list_active_lifecycle(conn, environment).await? {
        if let Some(StoredFunction { spec: FunctionSpec::Lifecycle(spec), .. }) =
            StoredFunction::read(&function.spec)
            && spec.event == LifecycleEvent::ConnectionDeleting
        {
            functions.push((function.integration, function.name));
        }
    }
    Ok(functions)
}

/// Queues a lifecycle function of a connection as a job. Returns the job's id.
pub(crate) async fn queue(
    conn: &mut PgConnection,
    connection: &Connection,
    function: &FunctionName,
) -> sqlx::Result<Uuid> {
    let job = NewJob {
        id: Uuid::now_v7(),
        environment: connection.environment,
        integration: connection.integration,
        connection: connection.pk,
        integration_key: &connection.integration_key,
        connection_id: &connection.connection_id,
        kind: FunctionKind::Lifecycle,
        function,
        is_ordered: false,
        max_retries: 0,
        sealed_input: None,
        key: None,
        webhook: None,
    };
    function_jobs::enqueue(conn, &job).await?;
    Ok(job.id)
}
