use std::io::Read;
use std::path::Path;

use prep_catalog::{DatasetName, Entry, Manifest};
use prep_formats::array_record::WriteOptions;
use prep_formats::store::Location;
use prep_jobs::archive::Tar;
use prep_loader::State;
use prep_loader::split::{ResolvedSplit, SplitLengths};

use crate::text_of;

/// The first byte chooses the document: log entry, manifest, loader state, recipe.
pub(crate) fn documents(bytes: &[u8]) {
    let Some((choice, text)) = text_of(bytes) else {
        return;
    };
    match choice % 4 {
        0 => {
            if let Ok(entry) = Entry::from_json(text.as_bytes(), "entry") {
                let again = Entry::from_json(&entry.to_json(), "entry").expect("our own JSON");
                assert_eq!(again, entry);
            }
        }
        1 => {
            if let Ok(manifest) = Manifest::from_json(text.as_bytes(), "manifest") {
                let json = manifest.to_json();
                let again = Manifest::from_json(json.as_bytes(), "manifest").expect("our own JSON");
                assert_eq!(again.to_json(), json);
            }
        }
        2 => {
            if let Ok(state) = State::from_json(text) {
                let again = State::from_json(&state.to_json()).expect("our own JSON");
                assert_eq!(again, state);
            }
        }
        _ => {
            let _ = prep_jobs::recipe::parse("fuzzed.toml", text, Path::new("/nowhere"));
        }
    }
}

/// The first byte chooses what a text is read as.
pub(crate) fn texts(bytes: &[u8]) {
    let Some((choice, text)) = text_of(bytes) else {
        return;
    };
    match choice % 5 {
        0 => {
            if let Ok(options) = WriteOptions::parse(text) {
                // The text says what was left out, so only texts are the same again.
                let text = options.to_string();
                let again = WriteOptions::parse(&text).expect("our own options string");
                assert_eq!(again.to_string(), text);
            }
        }
        1 => {
            let splits =
                [("train", vec![10, 0, 3]), ("test", vec![7]), ("empty", vec![])].map(|(name, shards)| {
                    SplitLengths {
                        name: name.to_string(),
                        shards,
                    }
                });
            if let Ok(resolved) = ResolvedSplit::parse(text, &splits) {
                for part in resolved.parts() {
                    assert!(part.start <= part.end && part.end <= splits[part.split].records());
                }
            }
        }
        2 => {
            if let Ok(location) = Location::parse(text) {
                let _ = location.join("a/b");
                let _ = location.local_path();
            }
        }
        3 => {
            if let Ok(name) = DatasetName::parse(text) {
                assert_eq!(DatasetName::parse(&name.to_string()).ok(), Some(name));
            }
        }
        _ => {
            let _ = prep_jobs::resources::parse_size(text);
        }
    }
}

/// An archive, read to its end.
pub(crate) fn tar(bytes: &[u8]) {
    let file = crate::unpack(bytes);
    let mut tar = Tar::new("fuzzed", &file[..]);
    let mut data = Vec::new();
    let mut last = None;
    while let Ok(Some(member)) = tar.next_member() {
        assert!(last < Some(member.offset), "members go forward");
        last = Some(member.offset);
        data.clear();
        match tar.read_to_end(&mut data) {
            Ok(_) => assert_eq!(data.len() as u64, member.bytes),
            Err(_) => break,
        }
    }
}
