"""lm_fusion"""
