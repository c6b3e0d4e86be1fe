//! `syncline test`: replays the recordings of a project, and compares the results.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;
use serde_json::json;

use super::Done;
use super::local_runs::{LocalRunArgs, digest, replay};
use super::project::{Opened, Project, folder, show};
use syncline_config::IntegrationSpec;
use syncline_engine::{DryRuns, ProjectFunction, Replay};
use syncline_providers::Catalogue;
use syncline_recording::{Recording, differences as compare};
use syncline_sandbox::PreparedComponent;

/// Folder of the recordings in a project.
const RECORDINGS: &str = "tests/recordings";

#[derive(Debug, Args)]
pub(super) struct TestArgs {
    /// Folder with the project's syncline.toml [default: the current folder]
    project: Option<PathBuf>,
    /// Replay only recordings whose file name contains this text
    filter: Option<String>,
    /// Replace the expected results in the recordings with those of the replays
    #[arg(long)]
    update: bool,
    /// Replay each recording this often, and fail if its results differ
    #[arg(long, default_value_t = 1, value_name = "TIMES", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repeat: u32,
    #[command(flatten)]
    local: LocalRunArgs,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
}

/// A recording with its file, and the function that it belongs to.
struct Test<'p> {
    path: PathBuf,
    /// Path within the project.
    name: String,
    recording: Recording,
    integration: &'p IntegrationSpec,
}

/// The result of a test.
struct Tested {
    name: String,
    function: String,
    differences: Vec<String>,
    is_updated: bool,
    digest: String,
}

pub(super) async fn run(args: TestArgs) -> anyhow::Result<Done> {
    let project = match Project::open(&folder(args.project.clone())?)? {
        Opened::Project(project) => project,
        Opened::Mistakes(diagnostics) => {
            show(&diagnostics);
            return Ok(Done::WithMistakes);
        }
    };
    let (mut tests, mut mistakes) = (Vec::new(), Vec::new());
    for (path, name) in recordings(&project, args.filter.as_deref())? {
        match open(&project, path, name) {
            Ok(test) => tests.push(test),
            Err(mistake) => mistakes.push(mistake),
        }
    }
    if !mistakes.is_empty() {
        mistakes.iter().for_each(|mistake| eprintln!("error: {mistake}"));
        return Ok(Done::WithMistakes);
    }
    let runs = args.local.start(Catalogue::load(None)?, Vec::new())?;
    let mut components: HashMap<&str, Arc<PreparedComponent>> = HashMap::new();
    let mut results = Vec::new();
    for test in tests {
        let component = match components.get(test.integration.component.as_str()) {
            Some(component) => Arc::clone(component),
            None => {
                let wasm = project.build_component(test.integration)?;
                let component = runs.prepare(&wasm).await.with_context(|| {
                    format!("the component `{}` is not valid", test.integration.component)
                })?;
                components.insert(&test.integration.component, Arc::clone(&component));
                component
            }
        };
        let Recording { kind, function, .. } = &test.recording;
        let found =
            ProjectFunction::find(&project.file.config, test.integration, *kind, function, component)?;
        let found = Arc::new(found.context("the function was found before")?);
        let tested = play(&args, &runs, test, &found).await?;
        if !args.json {
            print(&tested, args.repeat);
        }
        results.push(tested);
    }
    if args.json {
        let results = results.iter().map(|Tested { name, function, differences, is_updated, digest }| {
            json!({
                "recording": name, "function": function, "differences": differences, "updated": is_updated,
                "digest": digest,
            })
        });
        println!("{}", serde_json::to_string_pretty(&results.collect::<Vec<_>>())?);
    }
    let failed = results.iter().filter(|tested| !tested.differences.is_empty() && !tested.is_updated).count();
    match failed {
        0 => Ok(Done::Successful),
        _ => bail!(
            "{failed} of {} recordings differ; if that is intended, run `syncline test --update`",
            results.len()
        ),
    }
}

/// The files of the recordings, sorted, with their paths within the project.
fn recordings(project: &Project, filter: Option<&str>) -> anyhow::Result<Vec<(PathBuf, String)>> {
    let folder = project.folder().join(RECORDINGS);
    let none = || {
        format!(
            "{} contains no recordings; `syncline dryrun FUNCTION --record {RECORDINGS}/NAME.json` writes one",
            folder.display()
        )
    };
    let entries = match std::fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => bail!(none()),
        Err(error) => return Err(error).with_context(|| format!("could not read {}", folder.display())),
    };
    let mut files = BTreeSet::new();
    for entry in entries {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if Path::new(&name).extension().is_some_and(|extension| extension == "json") {
            files.insert(name);
        }
    }
    if files.is_empty() {
        bail!(none());
    }
    let matching = |name: &String| filter.is_none_or(|filter| name.contains(filter));
    let chosen: Vec<_> = files
        .into_iter()
        .filter(matching)
        .map(|name| (folder.join(&name), format!("{RECORDINGS}/{name}")))
        .collect();
    if chosen.is_empty() {
        bail!("no recording in {} has `{}` in its name", folder.display(), filter.unwrap_or_default());
    }
    Ok(chosen)
}

/// Reads a recording, and finds its function. The error is the text of a mistake.
fn open(project: &Project, path: PathBuf, name: String) -> Result<Test<'_>, String> {
    let text = std::fs::read_to_string(&path).map_err(|error| format!("could not read {name}: {error}"))?;
    let recording = Recording::parse(&text).map_err(|error| format!("{name}: {error}"))?;
    let Recording { integration, kind, function, .. } = &recording;
    let found = project.file.config.integrations.iter().find(|known| known.key == *integration);
    let Some(found) = found else {
        return Err(format!(
            "{name}: syncline.toml has no integration `{integration}`; delete the recording, or correct its `integration`"
        ));
    };
    if !found.functions().any(|(of, listed)| of == *kind && listed == function) {
        return Err(format!(
            "{name}: the integration `{integration}` has no {kind} `{function}`; delete the recording, or correct its \
             `function`"
        ));
    }
    Ok(Test { path, name, recording, integration: found })
}

async fn play(
    args: &TestArgs,
    runs: &Arc<DryRuns>,
    test: Test<'_>,
    function: &Arc<ProjectFunction>,
) -> anyhow::Result<Tested> {
    let Test { path, name, mut recording, .. } = test;
    let replays = replay(runs, function, recording.clone(), args.repeat).await;
    let replays = replays.with_context(|| format!("could not replay {name}"))?;
    let mut replays = replays.into_iter();
    let first = replays.next().context("a recording is replayed at least once")?;
    let first_digest = digest(&first);
    let other = replays.next();
    let Replay { outcome, exchanges, unmatched } = first;
    let mut differences: Vec<String> = match &unmatched {
        // The outcome of a run that ended early differs in many ways, which all have this cause.
        Some(unmatched) => vec![format!("request: {unmatched}")],
        None => compare(&recording.expected, &recording.exchanges, &outcome, &exchanges),
    };
    let is_updated = args.update && !differences.is_empty() && unmatched.is_none() && other.is_none();
    if let Some(other) = other {
        let found = compare(&outcome, &exchanges, &other.outcome, &other.exchanges);
        let found = other.unmatched.into_iter().chain(found);
        differences.extend(found.map(|line| format!("between two replays: {line}")));
    }
    if is_updated {
        recording.expected = outcome;
        recording.exchanges = exchanges;
        std::fs::write(&path, recording.render())
            .with_context(|| format!("could not write {}", path.display()))?;
    }
    let function = format!("{} {}", recording.integration, recording.function);
    Ok(Tested { name, function, differences, is_updated, digest: first_digest })
}

fn print(tested: &Tested, times: u32) {
    let Tested { name, function, differences, is_updated, digest } = tested;
    let state = match (differences.is_empty(), is_updated) {
        (true, _) => "ok",
        (false, true) => "updated",
        (false, false) => "differs",
    };
    let repeated = if times > 1 { format!(", {times} replays, digest {digest}") } else { String::new() };
    println!("{state:<7}  {name} ({function}{repeated})");
    differences.iter().for_each(|line| println!("  {line}"));
}
