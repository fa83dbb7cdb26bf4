//! The next version of a dataset that is there: with more sources ([`append`]), or of what its sources are now ([`update`]).
//!
//! Both are builds which take finished shards over from an earlier version:
//!
//! | | `append` | `update` |
//! | --- | --- | --- |
//! | sources | those of the earlier version, as they were, and new ones behind them | those that the recipe stands for now |
//! | are read | the new ones | all for their SHA-256; for their records those that are new or changed |
//! | shards of the others | stay where they are: the manifest has `../VERSION/FILE` | are hard links in the new version's folder; the store's own copies in an object store |
//! | the result | a version that needs the folder of the earlier one | byte for byte that of a full build of the same recipe |
//! | where types change | is refused | all is built anew |
//! | the version | the recipe's if it is a new one, else the next minor one | the recipe's if it is a new one, else the next patch |
//!
//! Each version keeps its recipe, with the version's own number in it. Where it was found nobody knows any more: a kept recipe is read as if it lay in the
//! current folder.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use prep_catalog::name::Version;
use prep_catalog::{Catalog, DatasetName, Resolved, State};

use crate::build::base::{Base, RECIPE_FILE, Taking, kept_file};
use crate::build::kept::KeptRule;
use crate::build::publish::hinted;
use crate::build::{BuildRequest, recipe_sha256};
use crate::builder::{Layout, SourcePlace};
use crate::error::{Hinted, Usage};
use crate::readers::RecipeBuilder;
use crate::readers::rows::files::files_text;
use crate::recipe::edit::{self, Added};
use crate::recipe::{self, ReaderSpec, Recipe};

/// The request that makes the next version of a dataset from what its sources are now. `target` is a recipe's path, or a name in the catalog: then it is the
/// recipe that the version has kept, with paths from the current folder. The version is greater than all that are there, and than those in `passed`.
///
/// # Errors
/// There is no such dataset, or its files are not such that anything can be taken over; the recipe cannot be used.
pub fn update(
    catalog: Option<&str>,
    target: &str,
    version: Option<&str>,
    passed: &[Version],
) -> Result<BuildRequest> {
    let store = open(catalog)?;
    let given = is_recipe(target).then(|| recipe::find(target)).transpose()?;
    let name = match &given {
        Some(recipe) => DatasetName::new(&recipe.spec.name, recipe.spec.config.as_deref()).map_err(hinted)?,
        None => DatasetName::parse(target).map_err(hinted)?,
    };
    let resolved = resolve(&store, &name, given.is_some().then_some(target))?;
    let (text, place) = match &given {
        Some(recipe) => (recipe.text.to_string(), Text::of_file(target)),
        None => (
            kept_recipe(&resolved, "prep update RECIPE.toml")?,
            Text::kept(&resolved),
        ),
    };
    let recipe = place.parse(&text, &resolved)?;
    check_layout(&recipe)?;
    let state = store.state(&name).map_err(hinted)?;
    let number = match version {
        Some(version) => checked(version)?,
        None => next(&state, passed, &recipe, |version| version.next_patch())?,
    };
    let mut base = Base::read(&resolved, Taking::In)?;
    base.is_same_recipe = version.is_none()
        && !is_new(&state, &[], &recipe.spec.version)
        && recipe_sha256(
            &place.builder(&text, &resolved, &resolved.version)?,
            base.has_statistics(),
        ) == resolved.manifest.recipe_sha256;
    Ok(request(place.builder(&text, &resolved, &number)?, base, catalog))
}

/// What [`append`] adds.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Addition {
    /// The sources of this recipe that the version does not have.
    Recipe(String),
    /// These, as `SPLIT=PATTERN` or `PATTERN`: paths, patterns of paths from the current folder, or addresses.
    Sources(Vec<String>),
}

/// The request that makes a version with more sources than an earlier one has, whose shards it shares.
///
/// # Errors
/// As [`update`]; a source without a split, or of one that is not there.
pub fn append(
    catalog: Option<&str>,
    name: &str,
    addition: &Addition,
    version: Option<&str>,
    passed: &[Version],
) -> Result<BuildRequest> {
    let store = open(catalog)?;
    let name = DatasetName::parse(name).map_err(hinted)?;
    let resolved = resolve(&store, &name, None)?;
    let mut base = Base::read(&resolved, Taking::Beside)?;
    if !base.has_kept() {
        return Err(Hinted::new(
            format!(
                "version {} has kept nothing that tells what its shards depend on",
                resolved.version
            ),
            "make a version that has with `prep update RECIPE.toml`, and append to that",
        )
        .into());
    }
    let (text, place, num_taken) = match addition {
        Addition::Recipe(path) => (recipe::find(path)?.text.to_string(), Text::of_file(path), 0),
        Addition::Sources(sources) => {
            let text = kept_recipe(&resolved, "prep append NAME RECIPE.toml")?;
            let place = Text::kept(&resolved);
            let before = place.parse(&text, &resolved)?;
            base.kept_rules = Some(kept_rules(&before)?);
            let before = before.spec.sources.len();
            let added: Vec<Added> = sources
                .iter()
                .map(|text| parse_source(text))
                .collect::<Result<_>>()?;
            let text = edit::with_sources(&text, resolved.config.as_deref(), &added)?;
            (text, place, before)
        }
    };
    let recipe = place.parse(&text, &resolved)?;
    if recipe.spec.name != resolved.name {
        let message = format!(
            "the recipe is one of `{}`, and not of `{}`",
            recipe.spec.name, resolved.name
        );
        return Err(Hinted::new(message, "`name` in the recipe says what it is of").into());
    }
    check_layout(&recipe)?;
    let state = store.state(&name).map_err(hinted)?;
    let number = match version {
        Some(version) => checked(version)?,
        None => next(&state, passed, &recipe, |version| version.next_minor())?,
    };
    if number == resolved.version {
        return Err(Usage(format!("`--version {number}` is the version that is appended to")).into());
    }
    let mut recipe = place.parse(&with_version(&text, &recipe, &number)?, &resolved)?;
    if let ReaderSpec::Rows(rows) = &mut recipe.reader {
        for rule in rows.sources.iter_mut().take(num_taken) {
            rule.is_taken_over = true;
        }
    }
    Ok(request(RecipeBuilder::new(recipe), base, catalog))
}

/// The sources of a recipe of rows, as far as they stand for files.
fn kept_rules(recipe: &Recipe) -> Result<Vec<KeptRule>> {
    let ReaderSpec::Rows(rows) = &recipe.reader else {
        return Ok(Vec::new());
    };
    let rules = rows.sources.iter().zip(&recipe.spec.sources);
    rules
        .map(|(rule, source)| KeptRule::new(rule.text.as_deref().unwrap_or(&source.name), &source.place))
        .collect()
}

fn request(builder: RecipeBuilder, base: Base, catalog: Option<&str>) -> BuildRequest {
    let mut request = BuildRequest::new(Arc::new(builder));
    request.catalog = catalog.map(str::to_owned);
    request.statistics = base.has_statistics();
    request.base = Some(Arc::new(base));
    request
}

fn open(catalog: Option<&str>) -> Result<Catalog> {
    let location = prep_catalog::catalog_location(catalog).map_err(hinted)?;
    Catalog::open(&location).map_err(hinted)
}

fn is_recipe(target: &str) -> bool {
    let path = Path::new(target);
    path.extension()
        .is_some_and(|end| end.eq_ignore_ascii_case("toml"))
        || path.is_file()
        || target.contains(".toml/")
}

/// Finds the version, and refuses one of which nothing can be taken over.
fn resolve(catalog: &Catalog, name: &DatasetName, recipe: Option<&str>) -> Result<Resolved> {
    let resolved = match (catalog.resolve(name), recipe) {
        (Err(error @ prep_catalog::Error::UnknownDataset { .. }), Some(recipe)) => {
            return Err(Hinted::new(
                error.to_string(),
                format!("`prep register {recipe}` makes its first version"),
            )
            .into());
        }
        (resolved, _) => resolved.map_err(hinted)?,
    };
    if resolved.kind == "register" {
        return Err(Hinted::new(
            format!(
                "{} was registered in place: its files are not the catalog's",
                resolved.dataset_name()
            ),
            "register what is there now as another version: `prep register RECIPE.toml --in-place`",
        )
        .into());
    }
    if resolved.manifest.layout != Layout::BySource.name() {
        return Err(Hinted::new(
            format!(
                "{} has the layout `{}`, in which each shard depends on all sources",
                resolved.dataset_name(),
                resolved.manifest.layout
            ),
            "build it anew: `prep register RECIPE.toml`, with `layout = \"by-source\"` and another `version` in the recipe; versions of \
             that layout can be appended to and updated",
        )
        .into());
    }
    Ok(resolved)
}

fn check_layout(recipe: &Recipe) -> Result<()> {
    if recipe.spec.layout == Layout::BySource && matches!(recipe.reader, ReaderSpec::Rows(_)) {
        return Ok(());
    }
    Err(Hinted::new(
        format!(
            "the recipe asks for the layout `{}`, in which each shard depends on all sources",
            recipe.spec.layout.name()
        ),
        "`prep register RECIPE.toml` builds such a version; or give the recipe `layout = \"by-source\"`",
    )
    .into())
}

/// The recipe that a version has kept.
fn kept_recipe(resolved: &Resolved, instead: &str) -> Result<String> {
    let Some(bytes) = kept_file(resolved, RECIPE_FILE)? else {
        return Err(Hinted::new(
            format!("{} has kept no recipe", resolved.dataset_name()),
            format!("give the recipe's path: `{instead}`"),
        )
        .into());
    };
    String::from_utf8(bytes.into()).context("the kept recipe is not UTF-8")
}

/// Where a recipe's text comes from.
struct Text {
    shown: String,
    folder: std::path::PathBuf,
}

impl Text {
    /// `a.toml`, or `a.toml/CONFIG`.
    fn of_file(target: &str) -> Self {
        let path = match target.rsplit_once(".toml/") {
            Some((path, _)) => format!("{path}.toml"),
            None => target.to_owned(),
        };
        let folder = Path::new(&path).parent().unwrap_or(Path::new("")).to_owned();
        Self { shown: path, folder }
    }

    fn kept(resolved: &Resolved) -> Self {
        Self {
            shown: format!("the recipe of {}", resolved.dataset_name()),
            folder: Path::new("").to_owned(),
        }
    }

    fn parse(&self, text: &str, resolved: &Resolved) -> Result<Recipe> {
        let recipes = recipe::parse_all(&self.shown, text, &self.folder)?;
        let found = recipes
            .into_iter()
            .find(|recipe| recipe.spec.config == resolved.config);
        found.with_context(|| match &resolved.config {
            Some(config) => format!("{} has no config `{config}`", self.shown),
            None => format!("{} has configs, and the version is of none", self.shown),
        })
    }

    /// The builder of this recipe for another version.
    fn builder(&self, text: &str, resolved: &Resolved, version: &str) -> Result<RecipeBuilder> {
        let recipe = self.parse(text, resolved)?;
        let text = with_version(text, &recipe, version)?;
        Ok(RecipeBuilder::new(self.parse(&text, resolved)?))
    }
}

fn with_version(text: &str, recipe: &Recipe, version: &str) -> Result<String> {
    if recipe.spec.version == version {
        return Ok(text.to_owned());
    }
    edit::with_version(text, version)
}

fn checked(version: &str) -> Result<String> {
    match Version::parse(version) {
        Ok(version) => Ok(version.to_string()),
        Err(error) => Err(Usage(format!("`--version`: {error}")).into()),
    }
}

/// Whether a version is greater than all that are there, and than those to be passed over; and never was one whose files may still be there.
fn is_new(state: &State, passed: &[Version], version: &str) -> bool {
    let Ok(number) = Version::parse(version) else {
        return false;
    };
    let mut all = state.versions().map(|(version, _)| version).chain(passed);
    all.all(|there| *there < number) && !state.garbage().any(|(_, garbage)| garbage.version == version)
}

/// The recipe's version if it is a new one, else the one behind the greatest.
fn next(
    state: &State,
    passed: &[Version],
    recipe: &Recipe,
    behind: impl Fn(Version) -> Option<Version>,
) -> Result<String> {
    if is_new(state, passed, &recipe.spec.version) {
        return Ok(recipe.spec.version.clone());
    }
    let mut version = state
        .versions()
        .map(|(version, _)| version)
        .chain(passed)
        .max()
        .copied();
    loop {
        version = version.and_then(&behind);
        match version.map(|version| version.to_string()) {
            None => bail!("there is no version behind the greatest one: give one with `--version`"),
            Some(version) if is_new(state, passed, &version) => return Ok(version),
            Some(_) => {}
        }
    }
}

/// `SPLIT=PLACE`, or a place alone.
fn parse_source(text: &str) -> Result<Added> {
    let is_name = |text: &str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        !text.is_empty() && text.bytes().all(is_plain)
    };
    let (split, place) = match text.split_once('=') {
        // `date=1/a.csv` as partitioned tables have it, which is no split and a file.
        Some((_, place)) if Path::new(text).exists() && !Path::new(place).exists() => (None, text),
        Some((split, place)) if is_name(split) => (Some(split.to_owned()), place),
        _ => (None, text),
    };
    if place.is_empty() {
        return Err(Usage(format!("`--source {text}` names no files")).into());
    }
    let files = match place.contains("://") {
        true => place.rsplit('/').next().unwrap_or_default().to_owned(),
        false => files_text(place, &SourcePlace::Path(place.into()))
            .map_err(|reason| Usage(format!("`--source {text}`: {reason}")))?,
    };
    Ok(Added {
        split,
        place: place.to_owned(),
        files,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_may_name_their_split() {
        let parse = |text: &str| parse_source(text).map(|added| (added.split, added.place, added.files));
        let of = |split: Option<&str>, place: &str, files: &str| {
            (split.map(str::to_owned), place.to_owned(), files.to_owned())
        };
        assert_eq!(
            parse("train=no/*.csv").unwrap(),
            of(Some("train"), "no/*.csv", "no/*.csv")
        );
        assert_eq!(
            parse("no/{a=x|y}.csv").unwrap(),
            of(None, "no/{a=x|y}.csv", "no/{a=x|y}.csv")
        );
        assert_eq!(parse("./no/x.csv").unwrap().2, "no/x.csv");
        assert_eq!(parse("../no/*.csv").unwrap().2, "no/*.csv");
        assert_eq!(parse("./date=*/a.csv").unwrap().0, None);
        let url = parse("test=https://example.org/a/b.csv?x=1").unwrap();
        assert_eq!(
            (url.0.as_deref(), url.1.as_str()),
            (Some("test"), "https://example.org/a/b.csv?x=1")
        );
        for wrong in ["", "train=", "a/[x].csv"] {
            assert!(parse(wrong).unwrap_err().is::<Usage>(), "{wrong}");
        }
    }

    #[test]
    fn what_is_a_recipe() {
        for (target, wanted) in [
            ("a.toml", true),
            ("a/b.toml/small", true),
            ("a", false),
            ("a/small:1.0.0", false),
        ] {
            assert_eq!(is_recipe(target), wanted, "{target}");
        }
    }
}
