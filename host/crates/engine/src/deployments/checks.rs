//! Checks a bundle before it is deployed: its settings, and whether its components contain its functions.

use std::collections::BTreeMap;
use std::time::Duration;

use syncline_config::{ConfigFile, Diagnostics, FunctionKind, did_you_mean, table_of};
use syncline_egress::HostPattern;
use syncline_providers::Catalogue;
use syncline_sandbox::{Description, InvalidComponent, Sandbox};

/// Checks everything that needs no component: frequencies, providers and hosts.
pub fn check_settings(file: &ConfigFile, minimum_interval: Duration, catalogue: &Catalogue) -> Diagnostics {
    let mut found = file.diagnostics();
    file.check_frequencies(minimum_interval, &mut found);
    for integration in &file.config.integrations {
        let key = integration.key.as_str();
        if catalogue.find(&integration.provider).is_none() {
            let providers = catalogue.list();
            let known = providers.iter().map(|provider| provider.name.as_str());
            let help = match (did_you_mean(integration.provider.as_str(), known), catalogue.operator_folder())
            {
                (Some(near), _) => format!("did you mean `{near}`?"),
                (None, Some(folder)) => {
                    format!(
                        "`syncline providers list` lists all; provider files are read from {}",
                        folder.display()
                    )
                }
                (None, None) => {
                    "`syncline providers list` lists all; set SYNCLINE_PROVIDERS_DIR to a folder with files \
                                 of further providers"
                        .to_owned()
                }
            };
            let place = file.value(&["integrations", key, "provider"]);
            found.add(
                place,
                format!("there is no provider `{}` in the catalogue", integration.provider),
                Some(help),
            );
        }
        for (index, host) in integration.allow_hosts.iter().enumerate() {
            if let Err(problem) = host.parse::<HostPattern>() {
                let place = file.value(&["integrations", key, "allow_hosts", &index.to_string()]);
                found.add(place, problem.to_string(), None);
            }
        }
    }
    found
}

/// The result of [`check_components`].
pub struct CheckedComponents {
    pub mistakes: Diagnostics,
    /// Functions that no integration with their component lists, such as "action `echo` of the component `.`".
    pub unlisted: Vec<String>,
    /// The SDK and version of each component that has one, by path.
    pub sdks: BTreeMap<String, String>,
}

/// Checks the settings, and whether the components contain the functions that the file names.
pub async fn check_components(
    file: &ConfigFile,
    components: &BTreeMap<String, Vec<u8>>,
    minimum_interval: Duration,
    catalogue: &Catalogue,
    sandbox: &Sandbox,
) -> CheckedComponents {
    let mut found = check_settings(file, minimum_interval, catalogue);
    let mut sdks = BTreeMap::new();
    let mut described: BTreeMap<&str, Result<Vec<KindAndName>, InvalidComponent>> = BTreeMap::new();
    for integration in &file.config.integrations {
        let key = integration.key.as_str();
        let at = |name: &'static str| file.value(&["integrations", key, name]);
        let component = integration.component.as_str();
        let Some(wasm) = components.get(component) else {
            let help = Some("run `syncline build`".to_owned());
            found.add(at("component"), format!("the component `{component}` is not built"), help);
            continue;
        };
        if !described.contains_key(component) {
            let description = describe(sandbox, wasm).await;
            if let Ok(Description { sdk: Some(sdk), .. }) = &description {
                sdks.insert(component.to_owned(), format!("{} {}", sdk.name, sdk.version));
            }
            let functions = description.map(known_functions);
            if let Err(problem) = &functions {
                found.add(
                    at("component"),
                    format!("the component `{component}` is not valid: {problem}"),
                    None,
                );
            }
            described.insert(component, functions);
        }
        let Some(Ok(functions)) = described.get(component) else { continue };
        for (kind, name) in integration.functions() {
            let of_kind = || functions.iter().filter(|(of, _)| *of == kind).map(|(_, name)| name.as_str());
            if of_kind().any(|existing| existing == name.as_str()) {
                continue;
            }
            let place = file.key(&["integrations", key, table_of(kind), name.as_str()]);
            let existing: Vec<_> = of_kind().map(|name| format!("`{name}`")).collect();
            let other_kind = functions.iter().find(|(_, existing)| existing == name.as_str());
            let near = did_you_mean(name.as_str(), of_kind());
            let export = "export the function: in Rust, name it in `export!`";
            let help = match (other_kind, near, existing.as_slice()) {
                (Some((other, _)), ..) => format!(
                    "the component has the {other} `{name}`; list it under `{}`, or declare it as a {kind} in the code",
                    table_of(*other)
                ),
                (None, Some(near), _) => format!("the component has `{near}`"),
                (None, None, []) => format!("the component has no function of kind {kind}; {export}"),
                (None, None, _) => format!("the component has {}; {export}", existing.join(", ")),
            };
            found.add(place, format!("the component has no {kind} `{name}`"), Some(help));
        }
    }
    let is_listed = |component: &str, kind: FunctionKind, name: &str| {
        let mut integrations = file.config.integrations.iter();
        integrations.any(|integration| {
            integration.component == component
                && integration.functions().any(|(of, listed)| of == kind && listed.as_str() == name)
        })
    };
    let unlisted = described.iter().flat_map(|(component, functions)| {
        let functions = functions.as_ref().map_or(&[][..], |functions| functions);
        let functions = functions.iter().filter(|(kind, name)| !is_listed(component, *kind, name));
        functions.map(move |(kind, name)| format!("{kind} `{name}` of the component `{component}`"))
    });
    CheckedComponents { unlisted: unlisted.collect(), mistakes: found, sdks }
}

type KindAndName = (FunctionKind, String);

async fn describe(sandbox: &Sandbox, wasm: &[u8]) -> Result<Description, InvalidComponent> {
    let component = sandbox.prepare(wasm).await?;
    sandbox.describe(&component).await
}

/// Ignores functions of unknown kinds, because no integration can name them.
fn known_functions(description: Description) -> Vec<KindAndName> {
    let functions = description.functions.into_iter();
    functions.filter_map(|function| Some((function.kind.parse().ok()?, function.name))).collect()
}
