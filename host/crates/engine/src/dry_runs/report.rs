//! The result of a dry run or of a replay.

use std::sync::Arc;

use serde::Serialize;
use serde_json::value::RawValue;

use crate::dry_runs::state::{DryRecord, DryRunState};
use crate::dry_runs::{ProjectFunction, RunData, placeholders};
use syncline_model::canonical_text;
use syncline_recording::{
    Exchange, FORMAT, KeptRecord, LoggedLine, Masking, Outcome, RecordChange, RecordedConnection,
    RecordedRun, Recorder, Recording, RunFailure, SavedRecord,
};
use syncline_sandbox::{ConnectionInfo, LogEntry, RunInfo, RunLog};
use syncline_types::ids::IntegrationKey;
use syncline_types::json;

/// A request as it was sent, including retries and redirects. Its secrets are masked.
#[derive(Debug, Clone, Serialize)]
pub struct SentRequest {
    pub method: String,
    pub url: String,
    pub status: Option<u16>,
    pub error: Option<String>,
    pub ms: u64,
    /// Counted from 1.
    pub attempt: u32,
}

/// The result of a dry run.
pub struct Report {
    pub requests: Vec<SentRequest>,
    outcome: Outcome,
    kept: Vec<KeptRecord>,
    data: Arc<RunData>,
    log: RunLog,
}

/// The result of a replay.
pub struct Replay {
    pub outcome: Outcome,
    pub exchanges: Vec<Exchange>,
    /// The request that ended the run, because the recording has no response for it.
    pub unmatched: Option<String>,
}

impl Report {
    pub(crate) fn new(
        result: Result<Option<String>, RunFailure>,
        state: &DryRunState,
        data: &Arc<RunData>,
        log: RunLog,
        lines: Vec<LogEntry>,
    ) -> Self {
        let masking = Masking(&log);
        let lines = lines.into_iter().map(|entry| LoggedLine {
            level: entry.level.as_str().to_owned(),
            message: entry.message,
            fields: entry.fields.map(|fields| json_or_text(&fields)),
        });
        let lines = lines.collect();
        let (output, error) = match result {
            Ok(output) => (output.map(|output| masking.json(&output)), None),
            Err(RunFailure { code, message }) => {
                (None, Some(RunFailure { code, message: masking.text(&message) }))
            }
        };
        let mask =
            |payload: &String| masking.json(&canonical_text(payload).unwrap_or_else(|_| payload.clone()));
        let (mut records, mut kept, mut unchanged) = (Vec::new(), Vec::new(), 0);
        for ((model, variant, id), DryRecord { before, after, is_seen }) in &state.records {
            let (before, after) = (before.as_ref().map(mask), after.as_ref().map(mask));
            let change = match (&before, &after) {
                (None, Some(_)) => Some(RecordChange::Added),
                (Some(_), None) => Some(RecordChange::Deleted),
                (Some(before), Some(after)) if before.get() != after.get() => Some(RecordChange::Updated),
                _ => None,
            };
            let (model, variant, id) = (model.to_string(), variant.to_string(), masking.text(id));
            if let Some(record) = before.clone() {
                kept.push(KeptRecord {
                    model: model.clone(),
                    variant: variant.clone(),
                    id: id.clone(),
                    record,
                });
            }
            match change {
                Some(change) => records.push(SavedRecord { model, variant, id, change, before, after }),
                None => unchanged += u64::from(*is_seen && after.is_some()),
            }
        }
        let checkpoint = state.checkpoint.as_ref().map(|checkpoint| masking.json(checkpoint));
        let metadata = masking.json(state.metadata.as_str());
        let outcome = Outcome { output, error, records, unchanged, checkpoint, metadata, log: lines };
        Self { requests: Vec::new(), outcome, kept, data: Arc::clone(data), log }
    }

    pub fn outcome(&self) -> Outcome {
        self.outcome.clone()
    }

    /// The checkpoint before the run, as JSON text.
    pub fn former_checkpoint(&self) -> Option<&str> {
        self.data.checkpoint.as_deref()
    }

    /// The metadata before the run, as JSON text.
    pub fn former_metadata(&self) -> &str {
        &self.data.metadata
    }

    /// The recording of the run, without secrets.
    pub fn recording(
        &self,
        function: &ProjectFunction,
        integration: &IntegrationKey,
        recorder: &Recorder,
    ) -> Recording {
        let masking = Masking(&self.log);
        let data = &self.data;
        let RunInfo { id, variant, attempt, is_full } = data.run.clone();
        let ConnectionInfo { connection_id, provider, environment, config, tags, .. } = &data.connection;
        let credentials = data.credentials.as_deref().filter(|_| function.function.sees_credentials);
        let credentials = credentials.and_then(|text| json::parse(text).ok()).map(placeholders);
        let granted = function.function.granted_variables(data.variables.clone());
        Recording {
            format: FORMAT,
            integration: integration.clone(),
            kind: function.kind,
            function: function.name().clone(),
            started_at: recorder.clock().started_at(),
            random_seed: recorder.seed().to_string(),
            run: RecordedRun { id, variant, attempt, is_full },
            input: data.input.as_ref().map(|input| masking.json(input)),
            connection: RecordedConnection {
                id: connection_id.clone(),
                provider: provider.clone(),
                environment: environment.clone(),
                config: masking.json(config),
                tags: masking.json(tags),
                metadata: masking.json(&data.metadata),
                credentials: credentials.map(|credentials| masking.json(&credentials.to_string())),
            },
            variables: granted.into_iter().map(|(name, value)| (name, masking.text(&value))).collect(),
            checkpoint: data.checkpoint.as_ref().map(|checkpoint| masking.json(checkpoint)),
            kept: self.kept.clone(),
            exchanges: recorder.exchanges(&self.log),
            expected: self.outcome.clone().for_recording(),
        }
    }
}

fn json_or_text(text: &str) -> Box<RawValue> {
    let raw = RawValue::from_string(text.to_owned());
    raw.unwrap_or_else(|_| serde_json::value::to_raw_value(text).expect("a text can be represented as JSON"))
}
