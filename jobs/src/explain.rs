//! What a job would do, drawn: its stages, what flows between them, and what that takes.
//!
//! ```
//! use prep_jobs::explain::{Flow, Graph};
//!
//! let mut graph = Graph::new("convert 2 files");
//! let read = graph.stage("read", ["2 files"], &[]);
//! graph.stage("write", ["4 shards"], &[(read, Flow::new().records(1000).bytes(2 << 20))]);
//! assert!(graph.text().contains("| about 1,000 records, 2.0 MiB"));
//! assert!(graph.dot().contains("\"read\" -> \"write\""));
//! ```

use serde_json::{Value, json};

use crate::resources::show_size;

/// The stages of a job and what flows between them.
#[derive(Debug, Clone, PartialEq)]
pub struct Graph {
    title: String,
    stages: Vec<Stage>,
    notes: Vec<String>,
}

#[derive(Debug, Clone, PartialEq)]
struct Stage {
    name: String,
    details: Vec<String>,
    inputs: Vec<(usize, Flow)>,
}

/// A stage of a [`Graph`], to draw what flows from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StageId(usize);

/// What flows from one stage to the next, as far as it can be told beforehand.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Flow {
    records: Option<u64>,
    bytes: Option<u64>,
    how: Option<String>,
}

impl Flow {
    /// Something of which nothing is known.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the estimated number of records, or says that it is not known.
    #[must_use]
    pub fn records(mut self, records: impl Into<Option<u64>>) -> Self {
        self.records = records.into();
        self
    }

    /// Sets the estimated bytes, or says that they are not known.
    #[must_use]
    pub fn bytes(mut self, bytes: impl Into<Option<u64>>) -> Self {
        self.bytes = bytes.into();
        self
    }

    /// Sets how it gets there: `to the worker of its key`.
    #[must_use]
    pub fn how(mut self, how: impl Into<String>) -> Self {
        self.how = Some(how.into());
        self
    }

    /// `about 60,000 records, 175.8 MiB, to the worker of its key`.
    fn text(&self) -> String {
        let mut parts = Vec::new();
        if let Some(records) = self.records {
            parts.push(format!("{} records", crate::cli::show_count(records)));
        }
        if let Some(bytes) = self.bytes {
            parts.push(show_size(bytes));
        }
        let mut text = match &parts[..] {
            [] => "an amount that is not known beforehand".to_owned(),
            parts => format!("about {}", parts.join(", ")),
        };
        if let Some(how) = &self.how {
            text += &format!(", {how}");
        }
        text
    }
}

impl Graph {
    /// A graph without stages as yet.
    pub fn new(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            stages: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Adds a stage, after those that it takes its input from.
    pub fn stage<T: Into<String>>(
        &mut self,
        name: impl Into<String>,
        details: impl IntoIterator<Item = T>,
        inputs: &[(StageId, Flow)],
    ) -> StageId {
        self.stages.push(Stage {
            name: name.into(),
            details: details.into_iter().map(Into::into).collect(),
            inputs: inputs
                .iter()
                .map(|(stage, flow)| (stage.0, flow.clone()))
                .collect(),
        });
        StageId(self.stages.len() - 1)
    }

    /// Adds a line below the drawing: what the whole takes.
    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// The drawing as lines of text, from the sources down.
    pub fn text(&self) -> String {
        let width = self
            .stages
            .iter()
            .map(|stage| stage.name.len())
            .max()
            .unwrap_or(0)
            + 2;
        let mut text = format!("{}\n\n", self.title);
        for (index, stage) in self.stages.iter().enumerate() {
            for (from, flow) in &stage.inputs {
                // What comes from the stage right above needs no name.
                let origin = if *from + 1 == index && stage.inputs.len() == 1 {
                    String::new()
                } else {
                    format!("from {}: ", self.stages[*from].name)
                };
                text += &format!("  | {origin}{}\n", flow.text());
            }
            if !stage.inputs.is_empty() {
                text += "  v\n";
            }
            let mut details = stage.details.iter();
            let first = details.next().map_or("", String::as_str);
            text += format!("{:width$}{first}", stage.name).trim_end();
            text += "\n";
            for detail in details {
                text += &format!("{:width$}{detail}\n", "");
            }
        }
        if !self.notes.is_empty() {
            text += "\n";
        }
        for note in &self.notes {
            text += &format!("{note}\n");
        }
        text
    }

    /// The drawing in the language of Graphviz: `prep build NAME --explain=dot | dot -Tsvg`.
    pub fn dot(&self) -> String {
        let quote = |text: &str| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
        let mut text = format!("digraph {} {{\n", quote(&self.title));
        text += "    node [shape=box, fontname=\"sans-serif\"];\n    edge [fontname=\"sans-serif\"];\n";
        for stage in &self.stages {
            let mut label = vec![stage.name.clone()];
            label.extend(stage.details.iter().cloned());
            // `\n` is a line break in a label.
            let label: Vec<String> = label
                .iter()
                .map(|line| line.replace('\\', "\\\\").replace('"', "\\\""))
                .collect();
            text += &format!("    {} [label=\"{}\"];\n", quote(&stage.name), label.join("\\n"));
        }
        for stage in &self.stages {
            for (from, flow) in &stage.inputs {
                text += &format!(
                    "    {} -> {} [label={}];\n",
                    quote(&self.stages[*from].name),
                    quote(&stage.name),
                    quote(&flow.text())
                );
            }
        }
        if !self.notes.is_empty() {
            text += &format!("    label={};\n", quote(&self.notes.join("; ")));
        }
        text + "}\n"
    }

    /// The drawing for machines: `title`, `stages` (`name`, `details`, `inputs` of `stage`, `records`, `bytes`, `how`), `notes`.
    pub fn json(&self) -> Value {
        let input = |(from, flow): &(usize, Flow)| {
            json!({
                "stage": self.stages[*from].name,
                "records": flow.records,
                "bytes": flow.bytes,
                "how": flow.how,
            })
        };
        let stage = |stage: &Stage| {
            json!({
                "name": stage.name,
                "details": stage.details,
                "inputs": stage.inputs.iter().map(input).collect::<Vec<_>>(),
            })
        };
        json!({
            "title": self.title,
            "stages": self.stages.iter().map(stage).collect::<Vec<_>>(),
            "notes": self.notes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph() -> Graph {
        let mut graph = Graph::new("build `a`");
        let one = graph.stage("one", ["first", "second"], &[]);
        let two = graph.stage("two", [""; 0], &[]);
        graph.stage(
            "both",
            ["a \"name\""],
            &[
                (one, Flow::new().records(1500).bytes(1 << 20).how("by hash")),
                (two, Flow::new()),
            ],
        );
        graph.note("memory: 1.0 GiB");
        graph
    }

    #[test]
    fn a_graph_is_drawn_from_the_sources_down() {
        assert_eq!(
            graph().text(),
            "build `a`\n\n\
             one   first\n      second\n\
             two\n  \
             | from one: about 1,500 records, 1.0 MiB, by hash\n  \
             | from two: an amount that is not known beforehand\n  \
             v\n\
             both  a \"name\"\n\n\
             memory: 1.0 GiB\n"
        );
    }

    #[test]
    fn quotes_do_not_break_out_of_a_label() {
        let dot = graph().dot();
        assert!(
            dot.contains("\"both\" [label=\"both\\na \\\"name\\\"\"];"),
            "{dot}"
        );
        assert!(
            dot.contains("\"one\" -> \"both\" [label=\"about 1,500 records, 1.0 MiB, by hash\"]"),
            "{dot}"
        );
        assert!(dot.trim_end().ends_with('}'));
        assert_eq!(graph().json()["stages"][2]["inputs"][0]["records"], 1500);
    }
}
