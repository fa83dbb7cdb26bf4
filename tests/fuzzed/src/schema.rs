use prep_formats::dataset_info::DatasetInfo;
use prep_formats::features::Features;

use crate::text_of;

/// The first byte: 1 reads `dataset_info.json`, else `features.json`.
pub(crate) fn schema(bytes: &[u8]) {
    let Some((choice, text)) = text_of(bytes) else {
        return;
    };
    if choice & 1 == 1 {
        if let Ok(info) = DatasetInfo::from_json(text) {
            let json = info.to_json();
            let again = DatasetInfo::from_json(&json).expect("our own JSON");
            assert_eq!(again.to_json(), json);
        }
        return;
    }
    let read = |text: &str, labels: &[(String, String)]| {
        Features::from_files("features.json", text, |name| {
            let found = labels.iter().find(|(file, _)| file == name);
            Ok(found.map(|(_, text)| text.clone()))
        })
    };
    let Ok(features) = read(text, &[]) else {
        return;
    };
    let files = features.to_files();
    let json = &files
        .iter()
        .find(|(name, _)| name == "features.json")
        .expect("always written")
        .1;
    let again = read(json, &files).expect("our own JSON");
    assert_eq!(again.canonical_json(), features.canonical_json());
}
