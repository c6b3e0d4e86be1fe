//! Estimates the cost of validating with a JSON Schema. With references, a short schema can repeat a check a
//! billion times.
//!
//! The cost is the number of evaluations of subschemas on one path from the root of a value to a leaf. Checks of
//! different members add up only with the number of members, which the size of the value limits.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Map, Value};

/// Maximum depth of references. Each step into a subschema counts, because the steps are followed recursively.
const MAX_STEPS: usize = 200;
/// The maximum nesting of JSON that is parsed.
const MAX_DEPTH: usize = 128;
/// Maximum number of member checks that are recorded in total.
const MAX_RECORDED: usize = 1_000_000;

/// The cost of validating values of each depth.
#[derive(Debug)]
pub(super) struct Costs {
    /// The maximum number of subschemas that evaluate one value, without its members.
    pub(super) at_once: u64,
    /// By the depth of a value: the number of evaluations on one path through it. It never decreases.
    along: Vec<u64>,
}

/// Number of a subschema.
type Node = usize;

/// The members of a value to which a subschema applies.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Members<'s> {
    Named(&'s str),
    AnyOfObject,
    Numbered(usize),
    AnyOfList,
}

#[derive(Default)]
struct Edges<'s> {
    /// Subschemas that evaluate the same value.
    same_value: Vec<Node>,
    /// Subschemas that evaluate its members.
    below: Vec<(Members<'s>, Node)>,
    /// Whether it concerns unevaluated members, whose detection evaluates the value once more.
    evaluates_twice: bool,
}

/// All subschemas that evaluate a value because of one subschema, with their number of evaluations.
struct Evaluations<'s> {
    evaluations: u64,
    below: BTreeMap<Members<'s>, BTreeMap<Node, u64>>,
}

impl Costs {
    /// Follows the references of a schema. The error is a sentence.
    pub(super) fn of(schema: &Value) -> Result<Self, String> {
        let mut graph = Graph::new(schema);
        graph.visit(schema, 0)?;
        let mut together: Vec<Option<Evaluations<'_>>> = graph.edges.iter().map(|_| None).collect();
        let mut recorded = 0;
        for node in 0..graph.edges.len() {
            graph.gather(node, 0, &mut together, &mut recorded)?;
        }
        let together: Vec<Evaluations<'_>> = together.into_iter().flatten().collect();
        let at_once = together.iter().map(|node| node.evaluations).max().unwrap_or(1);
        let mut costs: Vec<u64> = together.iter().map(|node| node.evaluations).collect();
        let mut along = vec![costs[0]];
        for _ in 0..MAX_DEPTH {
            let deeper: Vec<u64> = together.iter().map(|node| node.along(&costs)).collect();
            along.push(deeper[0]);
            if deeper == costs {
                break;
            }
            costs = deeper;
        }
        Ok(Self { at_once, along })
    }

    /// Returns the number of evaluations on one path through a value of this depth.
    pub(super) fn along(&self, depth: usize) -> u64 {
        self.along[depth.min(self.along.len() - 1)]
    }

    /// Returns the number of evaluations for the deepest value.
    pub(super) fn most(&self) -> u64 {
        self.along(MAX_DEPTH)
    }
}

impl Evaluations<'_> {
    /// Returns the number of its own evaluations and those of its most expensive member.
    fn along(&self, costs: &[u64]) -> u64 {
        let of = |members: &Members<'_>| {
            let nodes = self.below.get(members).into_iter().flatten();
            nodes.fold(0_u64, |sum, (node, times)| sum.saturating_add(times.saturating_mul(costs[*node])))
        };
        let (any_of_object, any_of_list) = (of(&Members::AnyOfObject), of(&Members::AnyOfList));
        let most = self.below.keys().map(|members| match members {
            Members::Named(_) => of(members).saturating_add(any_of_object),
            Members::Numbered(_) => of(members).saturating_add(any_of_list),
            Members::AnyOfObject => any_of_object,
            Members::AnyOfList => any_of_list,
        });
        self.evaluations.saturating_add(most.max().unwrap_or_default())
    }
}

/// A schema with `$id`, to which `#` refers within it.
struct Resource<'s> {
    id: &'s str,
    schema: &'s Value,
    parent: Option<usize>,
}

struct Graph<'s> {
    resources: Vec<Resource<'s>>,
    anchors: HashMap<&'s str, Vec<&'s Value>>,
    /// The innermost resource of each schema that has references.
    resource_of: HashMap<*const Value, usize>,
    nodes: HashMap<*const Value, Node>,
    edges: Vec<Edges<'s>>,
    /// The number of steps below each node, or none while it is being visited.
    heights: Vec<Option<usize>>,
}

impl<'s> Graph<'s> {
    fn new(schema: &'s Value) -> Self {
        let mut graph = Self {
            resources: vec![Resource { id: "", schema, parent: None }],
            anchors: HashMap::new(),
            resource_of: HashMap::new(),
            nodes: HashMap::new(),
            edges: Vec::new(),
            heights: Vec::new(),
        };
        graph.index(schema, 0);
        graph
    }

    /// Records every schema that a reference can lead to.
    fn index(&mut self, value: &'s Value, mut resource: usize) {
        match value {
            Value::Array(values) => values.iter().for_each(|value| self.index(value, resource)),
            Value::Object(members) => {
                if let Some(id) = text(members, "$id").or_else(|| text(members, "id")) {
                    self.resources.push(Resource { id, schema: value, parent: Some(resource) });
                    resource = self.resources.len() - 1;
                }
                for keyword in ["$anchor", "$dynamicAnchor", "$id", "id"] {
                    if let Some(anchor) = text(members, keyword) {
                        self.anchors.entry(anchor.trim_start_matches('#')).or_default().push(value);
                    }
                }
                self.resource_of.insert(value, resource);
                members.values().for_each(|value| self.index(value, resource));
            }
            _ => {}
        }
    }

    /// Numbers a subschema and everything below it. Returns the number of steps below it.
    fn visit(&mut self, schema: &'s Value, steps: usize) -> Result<usize, String> {
        let too_deep = || Err(format!("its references are nested more than {MAX_STEPS} steps deep"));
        if let Some(node) = self.nodes.get(&std::ptr::from_ref(schema)) {
            // A schema that is being visited refers to itself.
            let height = self.heights[*node].unwrap_or_default();
            return if steps + height > MAX_STEPS { too_deep() } else { Ok(height) };
        }
        if steps > MAX_STEPS {
            return too_deep();
        }
        let node = self.edges.len();
        self.nodes.insert(schema, node);
        self.edges.push(Edges::default());
        self.heights.push(None);
        let (same_value, below) = self.subschemas(schema);
        let mut height = 0;
        let mut edges = Edges::default();
        for subschema in same_value {
            height = height.max(1 + self.visit(subschema, steps + 1)?);
            edges.same_value.push(self.nodes[&std::ptr::from_ref(subschema)]);
        }
        for (members, subschema) in below {
            height = height.max(1 + self.visit(subschema, steps + 1)?);
            edges.below.push((members, self.nodes[&std::ptr::from_ref(subschema)]));
        }
        let has_keyword = |keyword| schema.get(keyword).is_some();
        edges.evaluates_twice = has_keyword("unevaluatedProperties") || has_keyword("unevaluatedItems");
        self.edges[node] = edges;
        self.heights[node] = Some(height);
        Ok(height)
    }

    /// Returns the subschemas that evaluate the same value, and those that evaluate its members.
    fn subschemas(&self, schema: &'s Value) -> (Vec<&'s Value>, Vec<(Members<'s>, &'s Value)>) {
        let (mut same_value, mut below) = (Vec::new(), Vec::new());
        let Value::Object(keywords) = schema else { return (same_value, below) };
        for (keyword, value) in keywords {
            match (keyword.as_str(), value) {
                ("allOf" | "anyOf" | "oneOf", Value::Array(subschemas)) => same_value.extend(subschemas),
                ("not" | "if" | "then" | "else", _) => same_value.push(value),
                ("dependentSchemas" | "dependencies", Value::Object(subschemas)) => {
                    same_value.extend(subschemas.values());
                }
                ("$ref" | "$dynamicRef" | "$recursiveRef", Value::String(reference)) => {
                    same_value.extend(self.resolve(schema, reference));
                }
                ("properties", Value::Object(subschemas)) => {
                    below.extend(subschemas.iter().map(|(name, value)| (Members::Named(name), value)));
                }
                ("patternProperties", Value::Object(subschemas)) => {
                    below.extend(subschemas.values().map(|value| (Members::AnyOfObject, value)));
                }
                ("additionalProperties" | "unevaluatedProperties" | "propertyNames", _) => {
                    below.push((Members::AnyOfObject, value));
                }
                ("prefixItems" | "items", Value::Array(subschemas)) => {
                    let numbered = subschemas.iter().enumerate();
                    below.extend(numbered.map(|(index, value)| (Members::Numbered(index), value)));
                }
                ("items" | "additionalItems" | "unevaluatedItems" | "contains", _) => {
                    below.push((Members::AnyOfList, value));
                }
                _ => {}
            }
        }
        (same_value, below)
    }

    /// Returns the possible targets of a reference, too many rather than too few. The compiler checks that the
    /// reference is valid.
    fn resolve(&self, from: &'s Value, reference: &str) -> Vec<&'s Value> {
        let (document, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let around = std::iter::successors(self.resource_of.get(&std::ptr::from_ref(from)).copied(), |at| {
            self.resources[*at].parent
        });
        let last_step =
            |id: &'_ str| id.trim_end_matches('#').rsplit('/').next().unwrap_or_default().to_owned();
        let resources: Vec<usize> = if document.is_empty() {
            around.collect()
        } else {
            let wanted = last_step(document);
            (0..self.resources.len()).filter(|at| last_step(self.resources[*at].id) == wanted).collect()
        };
        let fragment = percent_encoding::percent_decode_str(fragment).decode_utf8_lossy();
        let mut found: Vec<&'s Value> = if fragment.is_empty() {
            // Within a resource, `#` does not refer to the resources around it.
            let nearest = if document.is_empty() { 1 } else { resources.len() };
            resources.iter().take(nearest).map(|at| self.resources[*at].schema).collect()
        } else if fragment.starts_with('/') {
            resources.iter().filter_map(|at| self.resources[*at].schema.pointer(&fragment)).collect()
        } else {
            self.anchors.get(&*fragment).cloned().unwrap_or_default()
        };
        found.dedup_by_key(|value| std::ptr::from_ref(*value));
        found
    }

    /// Adds up the evaluations of a value because of a subschema.
    fn gather(
        &self,
        node: Node,
        steps: usize,
        together: &mut [Option<Evaluations<'s>>],
        recorded: &mut usize,
    ) -> Result<(), String> {
        if together[node].is_some() {
            return Ok(());
        }
        // No path without a loop is longer.
        if steps > self.edges.len().min(2 * MAX_STEPS) {
            return Err("its references form an endless or nearly endless loop".to_owned());
        }
        let edges = &self.edges[node];
        let mut sum = Evaluations { evaluations: 1, below: BTreeMap::new() };
        for (members, below) in &edges.below {
            *sum.below.entry(members.clone()).or_default().entry(*below).or_default() += 1;
        }
        for same_value in &edges.same_value {
            self.gather(*same_value, steps + 1, together, recorded)?;
            let Some(other) = &together[*same_value] else { continue };
            let times = if edges.evaluates_twice { 2 } else { 1 };
            sum.evaluations = sum.evaluations.saturating_add(other.evaluations.saturating_mul(times));
            for (members, nodes) in &other.below {
                let of_members = sum.below.entry(members.clone()).or_default();
                for (node, more) in nodes {
                    let count = of_members.entry(*node).or_default();
                    *count = count.saturating_add(more.saturating_mul(times));
                }
            }
        }
        *recorded += sum.below.values().map(BTreeMap::len).sum::<usize>();
        if *recorded > MAX_RECORDED {
            return Err("its references lead to too many properties".to_owned());
        }
        together[node] = Some(sum);
        Ok(())
    }
}

fn text<'s>(members: &'s Map<String, Value>, keyword: &str) -> Option<&'s str> {
    members.get(keyword)?.as_str()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// `$defs` in which each definition checks the next one twice, by `step`.
    fn doubling(steps: usize, step: impl Fn(Value) -> Value) -> Value {
        let link = |number: usize| {
            let next = || step(json!({ "$ref": format!("#/$defs/a{}", number + 1) }));
            (format!("a{number}"), json!({ "allOf": [next(), next()] }))
        };
        let mut definitions: Map<String, Value> = (0..steps).map(link).collect();
        definitions.insert(format!("a{steps}"), json!({ "type": "object" }));
        json!({ "$ref": "#/$defs/a0", "$defs": definitions })
    }

    #[test]
    fn repeated_checks_are_counted() {
        let costs = Costs::of(&doubling(40, |next| next)).unwrap();
        assert!(costs.at_once > 1 << 40, "{costs:?}");
        assert_eq!(Costs::of(&json!({ "type": "string" })).unwrap().at_once, 1);
        assert_eq!(Costs::of(&json!({ "allOf": [true, { "not": {} }] })).unwrap().at_once, 4);
    }

    #[test]
    fn a_check_that_doubles_with_each_level_is_expensive_for_deep_values_only() {
        let below = |next: Value| json!({ "properties": { "a": next } });
        let recursive = json!({ "oneOf": [{ "properties": { "a": { "$ref": "#" } } }, { "properties": { "a": { "$ref": "#" } } }] });
        for schema in [doubling(60, below), recursive] {
            let costs = Costs::of(&schema).unwrap();
            assert!(costs.at_once < 10, "{costs:?}");
            assert!(costs.along(3) < 200 && costs.along(40) > 1 << 40 && costs.most() > 1 << 40, "{costs:?}");
        }
    }

    #[test]
    fn trees_and_wide_schemas_are_cheap() {
        let tree = json!({ "properties": { "left": { "$ref": "#" }, "right": { "$ref": "#" }, "all": { "items": { "$ref": "#" } } } });
        assert!(Costs::of(&tree).unwrap().most() < 300);
        let field = |number: usize| (format!("f{number}"), json!({ "$ref": "#/$defs/wide" }));
        let fields: Map<String, Value> = (0..3_000).map(field).collect();
        let wide = json!({ "properties": fields, "$defs": { "wide": { "properties": { "b": { "$ref": "#/$defs/text" } } }, "text": {} } });
        assert!(Costs::of(&wide).unwrap().most() < 10);
    }

    #[test]
    fn references_are_followed_in_every_spelling() {
        for (reference, extra) in [
            ("#/$defs/a%20b", json!({})),
            ("#here", json!({ "$anchor": "here" })),
            ("https://example.com/other.json", json!({ "$id": "https://example.com/other.json" })),
            ("other.json#/x", json!({ "$id": "other.json", "x": { "allOf": [{}, {}, {}] } })),
        ] {
            let mut target = json!({ "allOf": [{}, {}, {}] });
            target.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            let schema = json!({ "$ref": reference, "$defs": { "a b": target } });
            assert_eq!(Costs::of(&schema).unwrap().at_once, 5, "{reference}");
        }
    }

    #[test]
    fn endless_references_are_reported() {
        let chain = |number: usize| {
            (format!("a{number}"), json!({ "not": { "$ref": format!("#/$defs/a{}", number + 1) } }))
        };
        let chain: Map<String, Value> = (0..10_000).map(chain).collect();
        for (schema, problem) in [
            (json!({ "$ref": "#" }), "its references form an endless or nearly endless loop"),
            (
                json!({ "allOf": [{ "not": { "$ref": "#" } }] }),
                "its references form an endless or nearly endless loop",
            ),
            (
                json!({ "$ref": "#/$defs/a0", "$defs": chain }),
                "its references are nested more than 200 steps deep",
            ),
        ] {
            assert_eq!(Costs::of(&schema).unwrap_err(), problem);
        }
    }
}
