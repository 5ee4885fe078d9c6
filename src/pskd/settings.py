"""stub until core merges"""
