"""Data sources for Grain (`grain.MapDataset.source`, `grain.DataLoader`)."""
