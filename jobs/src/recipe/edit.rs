//! Changes to the text of a recipe, which leave all else in it as it was written.

use anyhow::{Context, Result, bail};
use toml_edit::{DocumentMut, InlineTable, Item, Table, TableLike, Value};

use crate::error::Hinted;

/// A source that is added to a recipe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Added {
    /// The split that its files belong to, if the recipe does not deal them by itself.
    pub(crate) split: Option<String>,
    /// A path, a pattern of paths, or an address.
    pub(crate) place: String,
    /// A pattern of the paths of its files, as splits have them.
    pub(crate) files: String,
}

fn document(text: &str) -> Result<DocumentMut> {
    text.parse().context("the recipe is not TOML")
}

/// The recipe with this version.
///
/// # Errors
/// The text is not TOML.
pub(crate) fn with_version(text: &str, version: &str) -> Result<String> {
    let mut document = document(text)?;
    let mut value = Value::from(version);
    if let Some(old) = document.get("version").and_then(Item::as_value) {
        *value.decor_mut() = old.decor().clone();
    }
    document.insert("version", Item::Value(value));
    Ok(document.to_string())
}

/// The recipe with these sources behind its own, for one of its configs where it has such.
///
/// # Errors
/// The text is not TOML; a source names a split that is not there, none where there are several, or one where splits are dealt by fraction.
pub(crate) fn with_sources(text: &str, config: Option<&str>, added: &[Added]) -> Result<String> {
    let mut document = document(text)?;
    let table = document.as_table_mut();
    for source in added {
        let name = free_name(table, config);
        // A name that the split asks for, or that no other source can have.
        let is_url = source.place.contains("://");
        let entries = [
            (!is_url).then_some(("name", name.as_str())),
            Some((if is_url { "url" } else { "path" }, source.place.as_str())),
        ];
        let called = match is_url {
            true => source.place.rsplit('/').next().unwrap_or_default(),
            false => &name,
        };
        add_to_split(holder(table, config, "splits"), source, called)?;
        push(holder(table, config, "sources"), entries.into_iter().flatten())?;
    }
    Ok(document.to_string())
}

/// The table that has `field`: that of the config, if it has its own.
fn holder<'a>(root: &'a mut Table, config: Option<&str>, field: &str) -> &'a mut dyn TableLike {
    let is_it = |table: &dyn TableLike| {
        let name = table.get("name").and_then(Item::as_str);
        name == config && table.contains_key(field)
    };
    let index = root
        .get_mut("configs")
        .filter(|_| config.is_some())
        .and_then(|configs| entries(configs).into_iter().position(|table| is_it(table)));
    match index {
        // A second look, as the first one borrows what is given back otherwise.
        Some(index) => {
            let configs = root.get_mut("configs").map(entries).unwrap_or_default();
            match configs.into_iter().nth(index) {
                Some(table) => table,
                None => unreachable!("the table was there a moment ago"),
            }
        }
        None => root,
    }
}

/// The tables of `[[x]]`, or of `x = [{..}]`.
fn entries(item: &mut Item) -> Vec<&mut dyn TableLike> {
    match item {
        Item::ArrayOfTables(tables) => tables
            .iter_mut()
            .map(|table| table as &mut dyn TableLike)
            .collect(),
        Item::Value(Value::Array(array)) => {
            let tables = array.iter_mut().filter_map(Value::as_inline_table_mut);
            tables.map(|table| table as &mut dyn TableLike).collect()
        }
        _ => Vec::new(),
    }
}

fn free_name(root: &mut Table, config: Option<&str>) -> String {
    let sources = holder(root, config, "sources");
    let known: Vec<String> = sources
        .get_mut("sources")
        .map(entries)
        .unwrap_or_default()
        .into_iter()
        .filter_map(|source| Some(source.get("name")?.as_str()?.to_owned()))
        .collect();
    let names = (1..).map(|number| format!("added-{number}"));
    names
        .into_iter()
        .find(|name| !known.contains(name))
        .unwrap_or_default()
}

fn push<'a>(holder: &mut dyn TableLike, entries: impl Iterator<Item = (&'a str, &'a str)>) -> Result<()> {
    match holder.get_mut("sources") {
        Some(Item::Value(Value::Array(array))) => {
            array.push(entries.collect::<InlineTable>());
        }
        Some(Item::ArrayOfTables(tables)) => {
            let mut table = Table::new();
            for (key, value) in entries {
                table.insert(key, toml_edit::value(value));
            }
            table.decor_mut().set_prefix("\n");
            tables.push(table);
        }
        _ => bail!("the recipe has no `sources`"),
    }
    Ok(())
}

fn add_to_split(holder: &mut dyn TableLike, source: &Added, called: &str) -> Result<()> {
    let wanted = source.split.as_deref();
    let wrong = |message: String, hint: String| Err(Hinted::new(message, hint).into());
    let place = &source.place;
    let or_path = wanted.map_or(String::new(), |split| {
        format!("; if `{split}=` begins a path, write `./{split}={place}`")
    });
    let Some(splits) = holder.get_mut("splits") else {
        return match wanted {
            None | Some("train") => Ok(()),
            Some(other) => wrong(
                format!("there is no split `{other}`: the recipe has only `train`"),
                format!(
                    "give `--source train={place}`, or a recipe with another split: `prep append NAME RECIPE.toml`{or_path}"
                ),
            ),
        };
    };
    let is_dealt = splits.is_table()
        || entries(splits)
            .into_iter()
            .any(|split| split.contains_key("fraction"));
    if is_dealt {
        return match wanted {
            None => Ok(()),
            Some(split) => wrong(
                format!("`--source {split}={place}`: the recipe deals examples to its splits by fraction"),
                format!("give `--source {place}`{or_path}"),
            ),
        };
    }
    let mut splits = entries(splits);
    let name_of = |split: &dyn TableLike| split.get("name").and_then(Item::as_str).map(str::to_owned);
    let names: Vec<String> = splits.iter().filter_map(|split| name_of(*split)).collect();
    let index = match (wanted, names.as_slice()) {
        (None, [_]) => Some(0),
        (None, _) => None,
        (Some(wanted), names) => names.iter().position(|name| name == wanted),
    };
    let Some(split) = index.and_then(|index| splits.get_mut(index)) else {
        let known: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        let message = match wanted {
            None => format!("`--source {place}` does not say which split it is for"),
            Some(wanted) => format!("there is no split `{wanted}`"),
        };
        return wrong(
            message,
            format!(
                "give `--source SPLIT={place}`; the splits are {}{or_path}",
                known.join(", ")
            ),
        );
    };
    for (field, text) in [("sources", called), ("files", source.files.as_str())] {
        match split.get_mut(field) {
            Some(Item::Value(Value::Array(array))) if !array.is_empty() => array.push(text),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::path::Path;

    const HEAD: &str = "format = 1 # of recipes\nname = \"a\"\n";
    const TAIL: &str = "\n[reader]\nkind = \"jsonl\"\n";

    fn added(split: Option<&str>, place: &str) -> Vec<Added> {
        vec![Added {
            split: split.map(str::to_owned),
            place: place.to_owned(),
            files: place.to_owned(),
        }]
    }

    #[test]
    fn the_version_is_set_and_all_else_stays() {
        let with = format!("{HEAD}version = \"1.0.0\"   # first\n[[sources]]\npath = \"a.jsonl\"\n{TAIL}");
        assert_eq!(
            with_version(&with, "1.0.1").unwrap(),
            with.replace("1.0.0", "1.0.1")
        );
        let without = format!("{HEAD}[[sources]]\npath = \"a.jsonl\"\n{TAIL}");
        let text = with_version(&without, "1.0.1").unwrap();
        assert_eq!(text, without.replacen("[[", "version = \"1.0.1\"\n[[", 1));
        assert_eq!(with_version(&text, "1.0.1").unwrap(), text);
        assert!(with_version("a = ", "1.0.1").is_err());
    }

    #[test]
    fn sources_go_to_their_splits() {
        let sources = "[[sources]]\npath = \"a.jsonl\"\n";
        let parse = |text: &str| crate::recipe::parse("a.toml", text, Path::new("")).unwrap();
        let add = |text: &str, split: Option<&str>| with_sources(text, None, &added(split, "new/*.jsonl"));

        let alone = format!("{HEAD}{sources}{TAIL}");
        let text = add(&alone, Some("train")).unwrap();
        assert_eq!(
            text,
            alone.replace(
                sources,
                &format!("{sources}\n[[sources]]\nname = \"added-1\"\npath = \"new/*.jsonl\"\n")
            )
        );
        assert_eq!(parse(&text).spec.sources.len(), 2);
        let again = add(&text, None).unwrap();
        assert_eq!(parse(&again).spec.sources[2].name, "added-2");
        let error = add(&alone, Some("test")).unwrap_err();
        assert!(error.to_string().contains("only `train`"), "{error}");

        let inline = format!("{HEAD}sources = [{{path = \"a.jsonl\"}}]\n{TAIL}");
        assert_eq!(parse(&add(&inline, None).unwrap()).spec.sources.len(), 2);

        let dealt = format!("{HEAD}{sources}{TAIL}[splits]\ntrain = 0.5\ntest = 0.5\n");
        parse(&add(&dealt, None).unwrap());
        let error = add(&dealt, Some("train")).unwrap_err();
        assert!(error.to_string().contains("by fraction"), "{error}");

        let listed = format!(
            "{HEAD}{sources}{TAIL}[[splits]]\nname = \"train\"\nfiles = [\"a*\"]\n[[splits]]\nname = \"test\"\nfiles = [\"b*\"]\nsources = [\"a.jsonl\"]\n"
        );
        let recipe = parse(&add(&listed, Some("train")).unwrap());
        assert_eq!(recipe.files[0].files, ["a*", "new/*.jsonl"]);
        let recipe = parse(&add(&listed, Some("test")).unwrap());
        assert_eq!(recipe.files[1].files, ["b*", "new/*.jsonl"]);
        assert_eq!(recipe.files[1].sources, ["a.jsonl", "added-1"]);
        for split in [None, Some("tset")] {
            let error = add(&listed, split).unwrap_err();
            let hint = &error.downcast_ref::<Hinted>().unwrap().hint;
            assert!(hint.contains("`train`, `test`"), "{hint}");
        }
    }

    #[test]
    fn a_config_with_sources_of_its_own_gets_them() {
        let text = format!(
            "{HEAD}{TAIL}[[sources]]\npath = \"a.jsonl\"\n[[configs]]\nname = \"one\"\n[[configs]]\nname = \"two\"\nsources = [{{path = \"b.jsonl\"}}]\n"
        );
        for (config, wanted) in [("one", [2, 1]), ("two", [1, 2])] {
            let text = with_sources(&text, Some(config), &added(None, "c.jsonl")).unwrap();
            let recipes = crate::recipe::parse_all("a.toml", &text, Path::new("")).unwrap();
            let counts = recipes.iter().map(|recipe| recipe.spec.sources.len());
            assert!(counts.eq(wanted), "{config}: {text}");
        }
    }
}
